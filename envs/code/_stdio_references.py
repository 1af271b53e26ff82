"""Reference solutions of the well-known problems, and what their inputs are drawn with."""

import math
from collections import deque

import numpy as np

_NUMERALS = "0123456789abcdef"
_ROMAN = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
          (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))  # fmt: skip


def nth(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def in_base(number: int, base: int) -> str:
    return (in_base(number // base, base) if number >= base else "") + _NUMERALS[number % base]


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def factors(n: int) -> list[int]:
    """Return the prime factors in ascending order."""
    least = next((d for d in range(2, math.isqrt(n) + 1) if n % d == 0), n)
    return [n] if least == n else [least, *factors(n // least)]


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def roman(n: int) -> str:
    numeral = ""
    for value, letters in _ROMAN:
        numeral, n = numeral + letters * (n // value), n % value
    return numeral


def last_left(n: int, step: int) -> int:
    """Return who is left of n people when every `step`-th leaves."""
    people = deque(range(1, n + 1))
    while len(people) > 1:
        people.rotate(1 - step)
        people.popleft()
    return people[0]


def rising(values: list[int]) -> int:
    """Return the length of the longest rising subsequence."""
    best: list[int] = []
    for place, value in enumerate(values):
        best.append(1 + max((best[i] for i in range(place) if values[i] < value), default=0))
    return max(best)


def pairs(values: list[int], total: int) -> int:
    """Count the pairs of places whose numbers have a sum."""
    return sum(a + b == total for i, a in enumerate(values) for b in values[i + 1 :])


def coins(n: int, coins: tuple[int, ...]) -> str:
    """Return the smallest number of coins for an amount, or none."""
    fewest = [0] + [10**6] * n
    for amount in range(1, n + 1):
        fewest[amount] = 1 + min((fewest[amount - coin] for coin in coins if coin <= amount), default=10**6)
    return str(fewest[n]) if fewest[n] < 10**6 else "none"


def moved(letter: str, shift: int) -> str:
    return chr((ord(letter) - 97 + shift) % 26 + 97) if letter.islower() else letter


def runs(text: str) -> str:
    """Write runs of equal characters as character and length."""
    encoded, start = "", 0
    for place in range(1, len(text) + 1):
        if place == len(text) or text[place] != text[start]:
            encoded, start = f"{encoded}{text[start]}{place - start}", place
    return encoded


def brackets(rng: np.random.Generator) -> str:
    """Draw brackets that match most of the time."""
    text = ""
    for _ in range(int(rng.integers(1, 9))):
        place = int(rng.integers(len(text) + 1))
        text = f"{text[:place]}(){text[place:]}"
    return text if rng.random() < 0.8 else text[1:] + "("


def depth(text: str) -> str:
    """Return how deep brackets nest, or wrong."""
    depth = deepest = 0
    for letter in text:
        depth += 1 if letter == "(" else -1
        if depth < 0:
            return "wrong"
        deepest = max(deepest, depth)
    return "wrong" if depth else str(deepest)


def distance(first: str, second: str) -> int:
    """Return the edit distance of two words."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def draw_postfix(rng: np.random.Generator) -> str:
    """Draw an expression with its operators after their operands."""
    size = int(rng.integers(1, 5))
    if size == 1:
        return f"{rng.integers(1, 10)} {rng.integers(1, 10)} {rng.choice(list('+-*'))}"
    return f"{draw_postfix(rng)} {rng.integers(1, 10)} {rng.choice(list('+-*'))}"


def postfix(text: str) -> int:
    """Return the value of such an expression."""
    stack: list[int] = []
    for word in text.split():
        if word not in "+-*":
            stack.append(int(word))
            continue
        right, left = stack.pop(), stack.pop()
        stack.append({"+": left + right, "-": left - right, "*": left * right}[word])
    return stack[0]


def around(place: tuple[int, int], cells: list[list[int]], value: int) -> list[tuple[int, int]]:
    """Return the neighbours that hold what is wanted."""
    y, x = place
    near = ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
    return [(b, a) for b, a in near if 0 <= b < len(cells) and 0 <= a < len(cells[0]) and cells[b][a] == value]


def reached(start: tuple[int, int], cells: list[list[int]], value: int) -> dict[tuple[int, int], int]:
    steps, queue = {start: 0}, deque([start])
    while queue:
        place = queue.popleft()
        for near in around(place, cells, value):
            if near not in steps:
                steps[near] = steps[place] + 1
                queue.append(near)
    return steps


def islands(cells: list[list[int]]) -> int:
    seen: set[tuple[int, int]] = set()
    count = 0
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            if cell == 1 and (y, x) not in seen:
                seen |= set(reached((y, x), cells, 1))
                count += 1
    return count


def maze(rng: np.random.Generator) -> str:
    """Draw a grid of free cells and walls."""
    rows, columns = (int(size) for size in rng.integers(2, 8, 2))
    cells = (rng.random((rows, columns)) < 0.3).astype(int)
    cells[0, 0] = cells[-1, -1] = 0
    return "\n".join([f"{rows} {columns}", *(" ".join(map(str, row)) for row in cells.tolist())])


def way(cells: list[list[int]]) -> str:
    """Return the length of a shortest way from corner to corner, or none."""
    goal = (len(cells) - 1, len(cells[0]) - 1)
    return str(reached((0, 0), cells, 0).get(goal, "none"))


def diagonals(cells: list[list[int]]) -> str:
    return f"{sum(row[i] for i, row in enumerate(cells))} {sum(row[-1 - i] for i, row in enumerate(cells))}"
