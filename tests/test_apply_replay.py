"""`plan_replay` on programs written by hand: which ops run, in which order, what is freed, what is kept regardless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainfit.apply.replay import AT_START, plan_replay, structural_difference, structure_of
from trainfit.errors import BadDecision
from trainfit.records import BlockDecision, BlockProgram, Op, Phase, TensorRef


def ref(storage: int) -> TensorRef:
    return TensorRef(storage, "float32", (4,), (1,), 0)


def op(name: str, reads: list[int], makes: list[int]) -> Op:
    return Op(f"aten.{name}", Phase.FORWARD, "", tuple(ref(s) for s in reads), (), tuple(ref(s) for s in makes))


# x 0, weight 1: a 2 = x * w, b 3 = exp(a), c 4 = sin(b), d 5 = c + a (never saved), e 6 = cos(d)
CHAIN = BlockProgram(
    ops=(
        op("mul.Tensor", [0, 1], [2]),
        op("exp.default", [2], [3]),
        op("sin.default", [3], [4]),
        op("add.Tensor", [4, 2], [5]),
        op("cos.default", [5], [6]),
    ),
    storage_bytes=(16,) * 7,
    inputs=(ref(0),),
    parameters=(("w", ref(1)),),
    saved=(ref(0), ref(1), ref(3), ref(3), ref(5)),
    outputs=(ref(6),),
    submodule_outputs=(("proj", 2),),
    saved_after=(0, 0, 2, 2, 4),
)


class TestOps:
    def test_keeping_nothing_rebuilds_what_is_saved_and_no_more(self) -> None:
        plan = plan_replay(CHAIN, BlockDecision(()))
        assert plan.ops == (0, 1, 2, 3)  # cos is not needed
        assert plan.dropped == (False, False, True, True, True)
        assert plan.rebuilt == ((3, 2), (5, 1))
        assert plan.from_inputs == ((0, 0),)
        assert plan.from_parameters == (("w", 1),)
        assert plan.frees == ((0, 1), (), (), (2, 4))
        assert plan.kept == ()

    def test_a_kept_value_cuts_the_replay(self) -> None:
        plan = plan_replay(CHAIN, BlockDecision((3, 5)))
        assert (plan.ops, plan.dropped, plan.kept) == ((), (False,) * 5, (3, 5))

    def test_a_kept_value_that_the_replay_reads_is_held_when_it_is_packed(self) -> None:
        plan = plan_replay(CHAIN, BlockDecision((3,)))
        assert plan.ops == (0, 2, 3)
        assert plan.from_saved == ((2, 3),)
        assert plan.kept == (3,)

    def test_an_output_of_a_submodule_is_held_by_a_hook(self) -> None:
        plan = plan_replay(CHAIN, BlockDecision((2,)))
        assert plan.ops == (1, 2, 3)
        assert plan.from_submodules == (("proj", 0, 2),)
        assert plan.kept == (2,)

    def test_a_submodule_output_that_no_replay_reads_is_not_held(self) -> None:
        assert plan_replay(CHAIN, BlockDecision((2, 3, 5))).from_submodules == ()
        assert plan_replay(CHAIN, BlockDecision((2, 3, 5))).kept == (3, 5)

    def test_what_nobody_can_hold_is_refused(self) -> None:
        with pytest.raises(BadDecision, match="storage 4"):
            plan_replay(CHAIN, BlockDecision((4,)))


class TestKeptRegardless:
    def test_what_an_opaque_op_makes(self) -> None:
        plan = plan_replay(replace(CHAIN, opaque=(1,)), BlockDecision(()))
        assert plan.dropped == (False, False, False, False, True)
        assert plan.ops == (0, 2, 3)
        assert plan.kept == (3,)

    def test_what_depends_on_an_opaque_op_whose_result_nobody_holds(self) -> None:
        plan = plan_replay(replace(CHAIN, opaque=(2,)), BlockDecision(()))
        assert plan.dropped == (False, False, True, True, False)
        assert (plan.ops, plan.kept) == ((0, 1), (5,))

    def test_what_came_from_nowhere(self) -> None:
        program = replace(CHAIN, ops=(op("exp.default", [2], [3]), *CHAIN.ops[2:]), saved_after=(0, 0, 1, 1, 3))
        plan = plan_replay(program, BlockDecision(()))
        assert (plan.ops, plan.kept) == ((), (3, 5))


class TestInPlace:
    # a 1 = exp(x 0); a is overwritten by mul_; b 2 = sin(a); saved: the last a
    PROGRAM = BlockProgram(
        ops=(op("exp.default", [0], [1]), op("mul_.Tensor", [1], [1]), op("sin.default", [1], [2])),
        storage_bytes=(16,) * 3,
        inputs=(ref(0),),
        parameters=(),
        saved=(ref(1),),
        outputs=(ref(2),),
        submodule_outputs=(),
        saved_after=(2,),
        writes=((1, (1,)),),
    )

    def test_the_last_version_is_rebuilt_through_the_first(self) -> None:
        plan = plan_replay(self.PROGRAM, BlockDecision(()))
        assert plan.ops == (0, 1)
        assert plan.rebuilt == ((2, 1),)  # values: x 0, exp 1, after mul_ 2
        assert plan.frees == ((0,), (1,))

    def test_a_version_that_is_overwritten_is_passed_through_and_raises_by_its_version(self) -> None:
        plan = plan_replay(replace(self.PROGRAM, saved_after=(1,)), BlockDecision(()))
        assert (plan.ops, plan.dropped, plan.kept) == ((), (False,), ())

    def test_what_was_made_from_an_input_that_is_gone_is_kept(self) -> None:
        program = replace(
            self.PROGRAM,
            ops=(op("exp.default", [0], [1]), op("add_.Tensor", [0], [0]), op("mul.Tensor", [0, 1], [2])),
            saved=(ref(0), ref(1), ref(2)),
            saved_after=(2, 2, 3),
            writes=((1, (0,)),),
        )
        plan = plan_replay(program, BlockDecision(()))
        assert plan.dropped == (False, False, True)  # the new input is at hand, exp of the old one is lost
        assert (plan.ops, plan.kept) == ((2,), (1,))


class TestRandom:
    # masks 1, 2, 3 are drawn; 1 and 2 with nothing saved between them; all are saved by products with x
    PROGRAM = BlockProgram(
        ops=(
            op("rand.default", [], [1]),
            op("rand.default", [], [2]),
            op("mul.Tensor", [0, 2], [4]),
            op("mul.Tensor", [4, 1], [5]),
            op("rand.default", [], [3]),
            op("mul.Tensor", [5, 3], [6]),
        ),
        storage_bytes=(16,) * 7,
        inputs=(ref(0),),
        parameters=(),
        saved=(ref(2), ref(1), ref(3)),
        outputs=(ref(6),),
        submodule_outputs=(),
        saved_after=(2, 3, 5),
        random=(0, 1, 4),
    )

    def test_a_later_draw_starts_from_the_state_at_a_save(self) -> None:
        plan = plan_replay(self.PROGRAM, BlockDecision((1, 2)))
        assert (plan.ops, plan.random_starts) == ((4,), ((4, 1),))

    def test_draws_with_no_save_between_them_are_replayed_in_order_from_the_start(self) -> None:
        plan = plan_replay(self.PROGRAM, BlockDecision((1, 3)))
        assert (plan.ops, plan.random_starts) == ((0, 1), ((0, AT_START),))

    def test_the_first_draw_needs_no_other(self) -> None:
        plan = plan_replay(self.PROGRAM, BlockDecision((2, 3)))
        assert (plan.ops, plan.random_starts) == ((0,), ((0, AT_START),))

    def test_a_draw_after_one_that_cannot_be_repeated_is_kept(self) -> None:
        plan = plan_replay(replace(self.PROGRAM, opaque=(0,)), BlockDecision(()))
        assert (plan.ops, plan.kept) == ((4,), (1, 2))


class TestStructure:
    def test_it_does_not_depend_on_sizes(self) -> None:
        wide = replace(CHAIN, inputs=(replace(ref(0), shape=(8,)),), storage_bytes=(32,) * 7)
        assert structure_of(wide) == structure_of(CHAIN)

    def test_it_depends_on_ops_on_what_they_read_and_on_what_is_saved(self) -> None:
        others = (
            replace(CHAIN, ops=(*CHAIN.ops[:4], op("tan.default", [5], [6]))),
            replace(CHAIN, ops=(*CHAIN.ops[:4], op("cos.default", [4], [6]))),
            replace(CHAIN, saved=CHAIN.saved[:4], saved_after=CHAIN.saved_after[:4]),
            replace(CHAIN, submodule_outputs=()),
        )
        assert len({structure_of(program) for program in (CHAIN, *others)}) == 5

    def test_the_first_difference_is_named(self) -> None:
        planned = structure_of(CHAIN)
        assert structural_difference(planned, CHAIN) is None
        assert structural_difference(planned.partition(":")[0], CHAIN) is None
        other = replace(CHAIN, ops=(*CHAIN.ops[:1], replace(CHAIN.ops[1], name="aten.cos.default"), *CHAIN.ops[2:]))
        assert structural_difference(planned, other) == (
            "its op 1, aten.cos.default in the block itself, is not the one that the plan was made for"
        )
        shorter = replace(CHAIN, ops=CHAIN.ops[:1], saved=())
        assert structural_difference(planned, shorter) == f"it has 1 ops, and the plan was made for {len(CHAIN.ops)}"
        assert structural_difference(planned, replace(CHAIN, saved=())) == (
            "its ops are those that the plan was made for, but autograd saves other tensors of them"
        )
