"""The settings in which word problems are told: one set of sentences for each kind of event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryTheme:
    """The sentences of one setting; {n} is an amount, {k} a small number, {name} the person."""

    start: str
    """There are n."""
    packs: str
    """There are k times n."""
    gain: str
    """n more."""
    lose: str
    """n fewer."""
    gain_packs: str
    """k times n more."""
    lose_packs: str
    """k times n fewer."""
    ask: str
    """How many are there?"""
    times: str
    """How many is k times that?"""
    share: str
    """How many is that, split into k equal parts?"""


NAMES = (
    "Ada",
    "Ali",
    "Ana",
    "Ben",
    "Cleo",
    "Dina",
    "Eli",
    "Emma",
    "Finn",
    "Hana",
    "Ida",
    "Ivan",
    "Jin",
    "Kofi",
    "Lena",
    "Liam",
    "Mia",
    "Nora",
    "Omar",
    "Rosa",
    "Sam",
    "Tara",
    "Uma",
    "Yuki",
)

THEMES = (
    StoryTheme(
        start="{name} has {n} marbles.",
        packs="{name} has {k} bags of {n} marbles.",
        gain="{name} finds {n} more.",
        lose="{name} gives away {n}.",
        gain_packs="{name} buys {k} boxes of {n}.",
        lose_packs="{name} gives {k} friends {n} each.",
        ask="How many marbles does {name} have now?",
        times="Each marble weighs {k} grams. How many grams do they weigh together?",
        share="{name} splits them equally among {k} jars. How many marbles are in each jar?",
    ),
    StoryTheme(
        start="A train carries {n} passengers.",
        packs="A train has {k} cars with {n} passengers each.",
        gain="{n} people get on.",
        lose="{n} people get off.",
        gain_packs="{k} groups of {n} people get on.",
        lose_packs="{k} groups of {n} people get off.",
        ask="How many passengers are on the train now?",
        times="Each passenger pays {k} dollars. How many dollars do they pay in all?",
        share="They change to {k} buses, the same number in each. How many ride in each bus?",
    ),
    StoryTheme(
        start="A library has {n} books.",
        packs="A library has {k} shelves of {n} books.",
        gain="It buys {n} more.",
        lose="It lends out {n}.",
        gain_packs="It receives {k} boxes of {n}.",
        lose_packs="It lends {k} schools {n} each.",
        ask="How many books does it have now?",
        times="Each book gets {k} labels. How many labels are needed?",
        share="The books fill {k} equal shelves. How many books are on each shelf?",
    ),
    StoryTheme(
        start="A farmer has {n} eggs.",
        packs="A farmer has {k} baskets of {n} eggs.",
        gain="The hens lay {n} more.",
        lose="The farmer sells {n}.",
        gain_packs="A neighbor brings {k} trays of {n}.",
        lose_packs="The farmer sells {k} trays of {n}.",
        ask="How many eggs does the farmer have now?",
        times="Each egg costs {k} cents. How many cents do they cost together?",
        share="They are packed into {k} equal crates. How many eggs are in each crate?",
    ),
    StoryTheme(
        start="{name} has {n} dollars.",
        packs="{name} earns {n} dollars a day for {k} days.",
        gain="{name} is given {n} dollars.",
        lose="{name} spends {n} dollars.",
        gain_packs="{name} works {k} hours for {n} dollars an hour.",
        lose_packs="{name} buys {k} books for {n} dollars each.",
        ask="How many dollars does {name} have now?",
        times="A friend has {k} times as much. How many dollars does the friend have?",
        share="{name} splits the money equally among {k} people. How many dollars does each get?",
    ),
    StoryTheme(
        start="A tank holds {n} liters of water.",
        packs="A tank is filled with {k} barrels of {n} liters.",
        gain="{n} liters are added.",
        lose="{n} liters are used.",
        gain_packs="A pump adds {n} liters a minute for {k} minutes.",
        lose_packs="It loses {n} liters a day for {k} days.",
        ask="How many liters are in the tank now?",
        times="A second tank holds {k} times as much. How many liters does it hold?",
        share="The water is poured into {k} equal barrels. How many liters are in each barrel?",
    ),
    StoryTheme(
        start="A parking lot has {n} cars.",
        packs="A parking lot has {k} rows of {n} cars.",
        gain="{n} cars drive in.",
        lose="{n} cars leave.",
        gain_packs="In each of {k} hours {n} cars drive in.",
        lose_packs="In each of {k} hours {n} cars leave.",
        ask="How many cars are there now?",
        times="Each car pays {k} dollars. How many dollars is that in all?",
        share="They stand in {k} equal rows. How many cars are in each row?",
    ),
    StoryTheme(
        start="A bakery has {n} rolls.",
        packs="A bakery has {k} trays of {n} rolls.",
        gain="It bakes {n} more.",
        lose="It sells {n}.",
        gain_packs="It bakes {k} trays of {n}.",
        lose_packs="It sells {k} bags of {n}.",
        ask="How many rolls does it have now?",
        times="Each roll takes {k} spoons of flour. How many spoons of flour do they take?",
        share="The rolls go to {k} cafes in equal parts. How many rolls does each cafe get?",
    ),
    StoryTheme(
        start="{name} has {n} points.",
        packs="{name} wins {k} rounds of {n} points.",
        gain="{name} scores {n} points.",
        lose="{name} loses {n} points.",
        gain_packs="{name} hits {k} targets for {n} points each.",
        lose_packs="{name} makes {k} mistakes that cost {n} points each.",
        ask="How many points does {name} have now?",
        times="A rival has {k} times as many. How many points does the rival have?",
        share="{name} shares them equally with a team of {k}. How many points does each of the {k} get?",
    ),
    StoryTheme(
        start="A park has {n} trees.",
        packs="A park has {k} rows of {n} trees.",
        gain="{n} trees are planted.",
        lose="{n} trees are cut down.",
        gain_packs="{k} classes plant {n} trees each.",
        lose_packs="{k} storms fell {n} trees each.",
        ask="How many trees are in the park now?",
        times="Each tree gets {k} buckets of water. How many buckets is that?",
        share="{k} gardeners tend equal numbers of them. How many trees does each gardener tend?",
    ),
    StoryTheme(
        start="A warehouse stores {n} crates.",
        packs="A warehouse stores {k} stacks of {n} crates.",
        gain="{n} crates arrive.",
        lose="{n} crates are shipped.",
        gain_packs="{k} trucks bring {n} crates each.",
        lose_packs="{k} trucks take away {n} crates each.",
        ask="How many crates are stored now?",
        times="Each crate holds {k} lamps. How many lamps are there?",
        share="They stand in {k} equal stacks. How many crates are in each stack?",
    ),
    StoryTheme(
        start="{name} has {n} stamps.",
        packs="{name} has {k} albums of {n} stamps.",
        gain="{name} collects {n} more.",
        lose="{name} trades away {n}.",
        gain_packs="{name} orders {k} sets of {n}.",
        lose_packs="{name} sells {k} sets of {n}.",
        ask="How many stamps does {name} have now?",
        times="Each stamp is worth {k} cents. How many cents are they worth?",
        share="{name} puts them into {k} equal albums. How many stamps are in each album?",
    ),
    StoryTheme(
        start="A theater has sold {n} tickets.",
        packs="A theater has sold {n} tickets on each of {k} days.",
        gain="It sells {n} more.",
        lose="{n} are returned.",
        gain_packs="{k} clubs buy {n} each.",
        lose_packs="{k} clubs return {n} each.",
        ask="How many tickets are sold now?",
        times="Each ticket costs {k} dollars. How many dollars is that?",
        share="They are for {k} shows, equally many for each. How many tickets are sold for each show?",
    ),
    StoryTheme(
        start="A school has {n} pupils.",
        packs="A school has {k} classes of {n} pupils.",
        gain="{n} pupils join.",
        lose="{n} pupils leave.",
        gain_packs="{k} new classes of {n} pupils join.",
        lose_packs="{k} classes of {n} pupils leave.",
        ask="How many pupils does the school have now?",
        times="Each pupil needs {k} pencils. How many pencils are needed?",
        share="They form {k} equal teams. How many pupils are in each team?",
    ),
)
"""Each can tell every plan of events."""
