// Runs before the first paint: the reader's choice of light or dark, if one was made.
(function () {
  try {
    const theme = localStorage.getItem("trainfit-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch (error) {
    // A page in a sandboxed frame has no storage: it follows the system.
  }
})();
