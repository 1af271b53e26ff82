"""Theorems about functions that are defined with them: each is proved by induction."""

from collections.abc import Callable, Sequence

from envgym.authoring.sampler import Sampler
from envgym.envs.math._theorem import Theorem, renamed

_FUNCTIONS = ("f", "g", "h", "step", "walk", "grow", "fold", "weave")
_NUMBERS, _LISTS, _TREES = ("n", "k", "i", "num"), ("l", "xs", "items", "row"), ("t", "u", "tree0", "s")
_TREE = "Inductive tree : Type := leaf : tree | node : tree -> nat -> tree -> tree."


def induction(sampler: Sampler, level: int) -> Theorem:
    """Draw a theorem about numbers, lists or trees."""
    theorem = sampler.one(_KINDS[level])(sampler, level)
    names = {"F": sampler.one(_FUNCTIONS), "N": sampler.one(_NUMBERS), "T": sampler.one(_TREES)}
    names |= dict(zip(("L", "M"), sampler.some(_LISTS, 2), strict=True))
    return renamed(theorem, names)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _closed_form(sampler: Sampler, level: int) -> Theorem:
    step, base = sampler.between(1, 2 + level), sampler.between(0, 3 * level)
    is_after = sampler.between(0, 1) == 1
    body = f"F m + {step}" if is_after else f"{step} + F m"
    definition = f"Fixpoint F (n : nat) : nat := match n with 0 => {base} | S m => {body} end."
    is_base_first = sampler.between(0, 1) == 1
    turn = [f"rewrite (Nat.add_comm (F N) {step})."] if is_after else []
    proof = ["induction N as [|N IH].", "reflexivity."]
    if is_base_first:
        claim = f"F N = {base} + N * {step}"
        proof += [f"change ({body.replace('F m', 'F N')} = {base} + ({step} + N * {step})).", *turn]
        pairs = ((base, step), (step, base)) if step != base else ()  # equal ones are the same on both sides
        moves = [f"rewrite (Nat.add_assoc {one} {two} (N * {step}))." for one, two in pairs]
        proof += ["rewrite IH.", *moves, "reflexivity."]
    else:
        claim = f"F N = N * {step} + {base}"
        proof += ["simpl.", *turn, "rewrite IH.", "reflexivity."]
    return Theorem(definitions=(definition,), statement=f"forall N : nat, {claim}", proof=tuple(proof))


# ---- lists -----------------------------------------------------------------------------------------------------------


_STEP = ("induction L as [|x L IH].", "reflexivity.", "simpl.", "rewrite IH.")
"""How a proof about a list L begins: what is left is its own."""


def _elements(sampler: Sampler, level: int) -> list[str]:
    forms = (
        "x",
        "x",
        f"x * {sampler.between(2, 5)}",
        f"x + {sampler.between(1, 9)}",
        str(sampler.between(0, 9)),
        "x * x",
    )
    return [sampler.one(forms) for _ in range(sampler.between(1, 1 + level))]


def _list_function(elements: Sequence[str], base: Sequence[str] = ()) -> str:
    start = f"[{'; '.join(base)}]"
    body = " :: ".join([*elements, "F r"])
    return f"Fixpoint F (l : list nat) : list nat := match l with [] => {start} | x :: r => {body} end."


def _length(sampler: Sampler, level: int) -> Theorem:
    elements = _elements(sampler, level)
    base = [str(sampler.between(0, 9)) for _ in range(sampler.between(0, level))]
    more = f" + {len(base)}" if base else ""
    count = f"length L * {len(elements)}"
    return Theorem(
        definitions=(_list_function(elements, base),),
        statement=f"forall L : list nat, length (F L) = {count}{more}",
        proof=(*_STEP, "reflexivity."),
    )


def _append(sampler: Sampler, level: int) -> Theorem:
    """State that a function of lists takes each part of a list by itself."""
    order = sampler.one(("L M", "M L"))
    return Theorem(
        definitions=(_list_function(_elements(sampler, level)),),
        statement=f"forall {order} : list nat, F (L ++ M) = F L ++ F M",
        proof=(f"intros {order}.", *_STEP, "reflexivity."),
    )


def _sum(sampler: Sampler, level: int) -> Theorem:
    weight = sampler.one(
        ("x", f"x * {sampler.between(2, 7)}", f"(x * {sampler.between(2, 7)} + {sampler.between(1, 9)})", "x * x")
    )
    is_after = sampler.between(0, 1) == 1
    body = f"F r + {weight}" if is_after else f"{weight} + F r"
    definition = f"Fixpoint F (l : list nat) : nat := match l with [] => 0 | x :: r => {body} end."
    if is_after:
        moves = [
            f"rewrite <- (Nat.add_assoc (F L) ({weight}) (F M)).",
            f"rewrite (Nat.add_comm ({weight}) (F M)).",
            f"rewrite (Nat.add_assoc (F L) (F M) ({weight})).",
        ]
    else:
        moves = [f"rewrite (Nat.add_assoc ({weight}) (F L) (F M))."]
    order = sampler.one(("L M", "M L"))
    return Theorem(
        definitions=(definition,),
        statement=f"forall {order} : list nat, F (L ++ M) = F L + F M",
        proof=(f"intros {order}.", *_STEP, *moves, "reflexivity."),
    )


# ---- trees -----------------------------------------------------------------------------------------------------------


_MIRROR = (
    "Fixpoint mirror (t : tree) : tree := match t with leaf => leaf | node a v b => node (mirror b) v (mirror a) end."
)


_TREE_STEP = ("induction T as [|a IHa v b IHb].", "reflexivity.", "simpl.", "rewrite IHa.", "rewrite IHb.")
"""The same for a tree T."""


def _tree_sum(sampler: Sampler, level: int) -> Theorem:
    weight = sampler.one(("v", f"v * {sampler.between(2, 7)}", f"{sampler.between(1, 4)}", "v * v"))
    base = sampler.between(0, 9)
    is_after = sampler.between(0, 1) == 1
    body = f"F a + F b + {weight}" if is_after else f"{weight} + (F a + F b)"
    definition = f"Fixpoint F (t : tree) : nat := match t with leaf => {base} | node a v b => {body} end."
    return Theorem(
        definitions=(_TREE, _MIRROR, definition),
        statement="forall T : tree, F (mirror T) = F T",
        proof=(*_TREE_STEP, "rewrite (Nat.add_comm (F b) (F a)).", "reflexivity."),
    )


def _tree_map(sampler: Sampler, level: int) -> Theorem:
    weight = sampler.one(("v", f"v * {sampler.between(2, 7)}", f"(v + {sampler.between(1, 9)})", "(v * v)"))
    definition = (
        f"Fixpoint F (t : tree) : tree := match t with leaf => leaf | node a v b => node (F a) ({weight}) (F b) end."
    )
    sides = sampler.one((("F (mirror T)", "mirror (F T)"), ("mirror (F T)", "F (mirror T)")))
    return Theorem(
        definitions=(_TREE, _MIRROR, definition),
        statement=f"forall T : tree, {sides[0]} = {sides[1]}",
        proof=(*_TREE_STEP, "reflexivity."),
    )


_KINDS: dict[int, tuple[Callable[[Sampler, int], Theorem], ...]] = {
    1: (_closed_form, _length),
    2: (_closed_form, _length, _append, _tree_map),
    3: (_append, _sum, _sum, _tree_sum, _tree_sum, _closed_form),
}
