"use strict";
// Without this script the page is complete but still: pictures, tables and text are in the markup.

const find = (selector, root = document) => [...root.querySelectorAll(selector)];

function formatBytes(bytes) {
  for (const [name, unit] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= unit) return (bytes / unit).toFixed(1) + " " + name;
  }
  return Math.round(bytes) + " B";
}

const formatMs = (ms) => ms.toFixed(ms >= 100 ? 1 : 3) + " ms";

// Light and dark.
function setUpTheme() {
  const button = document.getElementById("theme");
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light");
  const other = () => (current() === "dark" ? "light" : "dark");
  const label = () => { button.textContent = other() === "dark" ? "Dark" : "Light"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = other();
    try {
      localStorage.setItem("trainfit-theme", current());
    } catch (error) {
      // No storage here: the choice lasts as long as the page.
    }
    label();
  });
  systemDark.addEventListener("change", label);
  label();
}

// Numbers in columns come as runs: a value, or a pair of a value and how often it comes.
const unpacked = (runs) => runs.flatMap((run) => (Array.isArray(run) ? Array(run[1]).fill(run[0]) : [run]));

// A cursor on each memory timeline; without a pointer it rests on the peak.
function setUpTimeline(plot, data) {
  const packed = data.timelines[Number(plot.dataset.timeline)];
  const timeline = {
    ...packed, op: unpacked(packed.op), module: unpacked(packed.module), phase: unpacked(packed.phase),
    units: packed.units.map(unpacked),
  };
  const figure = plot.closest("figure");
  const cursor = plot.querySelector(".cursor");
  const flag = plot.querySelector(".flag");
  const moment = figure.querySelector(".moment");
  const amounts = data.categories.map((name) => figure.querySelector(`[data-category="${name}"] b`));
  const total = (column) => timeline.units.reduce((sum, units) => sum + units[column], 0) * data.unit_bytes;
  let peak = 0;
  timeline.ms.forEach((_, column) => { if (total(column) > total(peak)) peak = column; });
  let shown = peak;

  function show(column, ms) {
    shown = column;
    const left = 100 * Math.min(ms, timeline.end_ms) / data.axis_ms;
    cursor.style.left = left + "%";
    flag.textContent = formatBytes(total(column));
    flag.classList.toggle("flipped", left > 80);
    const module = data.modules[timeline.module[column]];
    moment.querySelector(".when").textContent = formatMs(ms) + ", " + data.phases[timeline.phase[column]];
    moment.querySelector(".op").textContent = data.ops[timeline.op[column]];
    moment.querySelector(".module").textContent = module === "" ? "outside modules" : module;
    amounts.forEach((amount, index) => {
      if (amount) amount.textContent = formatBytes(timeline.units[index][column] * data.unit_bytes);
    });
  }

  function columnAt(ms) {
    let low = 0, high = timeline.ms.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (timeline.ms[middle] <= ms) low = middle; else high = middle - 1;
    }
    return low;
  }

  const rest = () => show(peak, timeline.ms[peak]);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const ms = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * data.axis_ms;
    show(columnAt(ms), Math.min(ms, timeline.end_ms));
  });
  plot.addEventListener("pointerleave", rest);
  plot.addEventListener("blur", rest);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const column = Math.max(0, Math.min(timeline.ms.length - 1, shown + step));
    show(column, timeline.ms[column]);
  });
  rest();
}

// What the marks of a picture say, in the text beside it; without a pointer, the one that is marked as chosen.
function setUpMarks(figure) {
  const marks = find("[data-says]", figure);
  const panels = find("[data-panel]", figure);
  const chosen = figure.dataset.chosen;
  const show = (name) => {
    panels.forEach((panel) => { panel.hidden = panel.dataset.panel !== name; });
    marks.forEach((mark) => mark.classList.toggle("active", mark.dataset.says === name));
  };
  for (const mark of marks) {
    for (const kind of ["pointerenter", "focus", "click"]) mark.addEventListener(kind, () => show(mark.dataset.says));
  }
  figure.addEventListener("pointerleave", () => show(chosen));
  show(chosen);
}

function setUpSorting(table) {
  const body = table.tBodies[0];
  find("th button", table).forEach((button) => {
    const header = button.closest("th");
    button.addEventListener("click", () => {
      const wasDescending = header.getAttribute("aria-sort") === "descending";
      const isText = header.dataset.sort === "text";
      const ascending = header.hasAttribute("aria-sort") ? wasDescending : isText;
      find("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const key = (row) => row.cells[header.cellIndex].dataset.value ?? row.cells[header.cellIndex].textContent;
      const compare = isText
        ? (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true })
        : (a, b) => Number(key(a)) - Number(key(b));
      const rows = [...body.rows].sort(compare);
      body.append(...(ascending ? rows : rows.reverse()));
    });
  });
}

function setUpDownload() {
  const button = document.getElementById("download");
  button.addEventListener("click", () => {
    const text = JSON.parse(document.getElementById("result").textContent);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = button.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

setUpTheme();
const cursorData = document.getElementById("cursor-data");
if (cursorData) {
  const data = JSON.parse(cursorData.textContent);
  find(".plot[data-timeline]").forEach((plot) => setUpTimeline(plot, data));
}
find("figure[data-chosen]").forEach(setUpMarks);
find("table.sortable").forEach(setUpSorting);
setUpDownload();
