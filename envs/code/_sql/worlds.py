"""The eight worlds of generated databases."""

from itertools import product

from envgym.envs.code._sql.schema import ColumnKind, ColumnSchema, DatabaseSchema, TableSchema


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = (
    "Ada Boris Carla Dmitri Elena Femi Greta Hassan Ines Jonas Keiko Liam Mara Nadia Omar Petra Quinn Rosa Samir Tove"
)
_LAST = "Abel Berg Costa Dahl Evans Fischer Garcia Haas Ivanov Jensen Kowalski Lund Moreau Novak Okafor Rossi"
_ADJECTIVES = "Amber Bitter Calm Distant Early Frozen Golden Hidden Idle Last Narrow Open Quiet Silver Wild"
_THINGS = "Anchor Bridge Candle Desert Echo Forest Garden Harbor Island Journey Lantern Mirror River Storm Winter"
_PEOPLE = tuple(" ".join(pair) for pair in product(_FIRST.split(), _LAST.split()))
_TITLES = tuple(" ".join(pair) for pair in product(_ADJECTIVES.split(), _THINGS.split()))
_CITIES = _words("Bergen Cairo Dakar Lima Osaka Porto Quito")
_PARENTS = (8, 11)
_CHILDREN = (36, 52)
_GRANDCHILDREN = (110, 150)


def _name(noun: str, values: tuple[str, ...], name: str = "name") -> ColumnSchema:
    return ColumnSchema(name=name, noun=noun, kind=ColumnKind.NAME, values=values)


def _category(name: str, values: str, noun: str = "") -> ColumnSchema:
    return ColumnSchema(name=name, noun=noun or name, kind=ColumnKind.CATEGORY, values=tuple(values.split()))


def _number(name: str, low: float, high: float, step: float, noun: str = "", unknown: float = 0.0) -> ColumnSchema:
    return ColumnSchema(
        name=name, noun=noun or name, kind=ColumnKind.NUMBER, low=low, high=high, step=step, unknown=unknown
    )


def _date(name: str, noun: str, unknown: float = 0.0) -> ColumnSchema:
    return ColumnSchema(name=name, noun=noun, kind=ColumnKind.DATE, unknown=unknown)


def _table(name: str, plural: str, *columns: ColumnSchema, parent: str | None = None, depth: int = 0) -> TableSchema:
    rows = (_PARENTS, _CHILDREN, _GRANDCHILDREN)[depth]
    return TableSchema(name=name, plural=plural, columns=columns, parent=parent, rows=rows)


def _cities(name: str = "city", noun: str = "") -> ColumnSchema:
    return _category(name, " ".join(_CITIES), noun)


COMPANY = DatabaseSchema(
    name="company",
    tables=(
        _table(
            "department",
            "departments",
            _name(
                "name",
                _words("Audit Claims Design Finance Legal Logistics Marketing Payroll Research Sales Support"),
            ),
            _cities(),
            _number("budget", 100, 900, 50),
        ),
        _table(
            "employee",
            "employees",
            _name("name", _PEOPLE),
            _cities(),
            _category("contract", "permanent temporary apprentice", "kind of contract"),
            _number("salary", 2000, 6000, 100),
            _number("bonus", 100, 900, 50, unknown=0.3),
            _date("hired", "date of hire"),
            parent="department",
            depth=1,
        ),
        _table(
            "expense",
            "expenses",
            _category("purpose", "travel meals books training"),
            _number("amount", 5, 400, 5),
            _date("paid", "date of payment", unknown=0.2),
            parent="employee",
            depth=2,
        ),
    ),
)
SHOP = DatabaseSchema(
    name="shop",
    tables=(
        _table(
            "supplier",
            "suppliers",
            _name("name", _words("Acorn Brio Cobalt Delta Ember Flint Garnet Helix Indigo Juniper Kestrel")),
            _cities(),
            _number("rating", 1, 9, 1),
        ),
        _table(
            "product",
            "products",
            _name("name", _TITLES),
            _category("color", "red green blue white"),
            _category("material", "wood steel glass cotton"),
            _number("price", 2.5, 90, 0.5),
            _number("weight", 100, 3000, 50, unknown=0.25),
            parent="supplier",
            depth=1,
        ),
        _table(
            "sale",
            "sales",
            _category("channel", "web store phone", "sales channel"),
            _number("quantity", 1, 12, 1),
            _number("discount", 5, 40, 5, unknown=0.4),
            _date("sold", "date of sale"),
            parent="product",
            depth=2,
        ),
    ),
)
LIBRARY = DatabaseSchema(
    name="library",
    tables=(
        _table(
            "author",
            "authors",
            _name("name", _PEOPLE),
            _cities("birthplace"),
            _number("born", 1900, 1990, 1, "year of birth"),
        ),
        _table(
            "book",
            "books",
            _name("title", _TITLES, "title"),
            _category("genre", "novel poetry history travel"),
            _category("language", "English French Arabic Japanese"),
            _number("pages", 80, 800, 10, "number of pages"),
            _number("copies", 1, 9, 1, "number of copies"),
            _number("age", 3, 16, 1, "recommended age", unknown=0.3),
            parent="author",
            depth=1,
        ),
        _table(
            "loan",
            "loans",
            _category("branch", "north south harbor"),
            _number("fee", 0.5, 12, 0.5),
            _date("lent", "date of lending"),
            _date("returned", "date of return", unknown=0.25),
            parent="book",
            depth=2,
        ),
    ),
)
CLINIC = DatabaseSchema(
    name="clinic",
    tables=(
        _table(
            "doctor",
            "doctors",
            _name("name", _PEOPLE),
            _category("specialty", "surgery eyes heart skin"),
            _number("experience", 1, 35, 1, "years of experience"),
        ),
        _table(
            "patient",
            "patients",
            _name("name", _PEOPLE),
            _cities(),
            _category("insurance", "public private none", "kind of insurance"),
            _number("age", 1, 95, 1),
            _number("weight", 40, 120, 1, unknown=0.25),
            _date("registered", "date of registration"),
            parent="doctor",
            depth=1,
        ),
        _table(
            "visit",
            "visits",
            _category("reason", "checkup pain fever injury"),
            _number("cost", 20, 500, 10),
            _number("minutes", 5, 60, 5, "duration in minutes", unknown=0.2),
            _date("day", "day"),
            parent="patient",
            depth=2,
        ),
    ),
)
AIRLINE = DatabaseSchema(
    name="airline",
    tables=(
        _table(
            "airline",
            "airlines",
            _name("name", _words("Aero Borealis Condor Dune Equator Fjord Gull Horizon Iris Jetline Kite")),
            _cities("base", "home base"),
            _number("founded", 1930, 2015, 1, "year of foundation"),
        ),
        _table(
            "flight",
            "flights",
            _name(
                "code",
                tuple(f"{letter}{number}" for letter in "ABCDEFGHKLMNPRSTVWXZ" for number in range(101, 110)),
                "code",
            ),
            _cities("origin"),
            _cities("destination"),
            _number("distance", 200, 9000, 100),
            _number("delay", 5, 120, 5, "delay in minutes", unknown=0.35),
            parent="airline",
            depth=1,
        ),
        _table(
            "ticket",
            "tickets",
            _category("class", "economy business first", "travel class"),
            _number("price", 50, 1500, 10),
            _number("bags", 0, 4, 1, "number of bags"),
            _date("sold", "date of sale"),
            _date("used", "date of use", unknown=0.2),
            parent="flight",
            depth=2,
        ),
    ),
)
MUSIC = DatabaseSchema(
    name="music",
    tables=(
        _table(
            "artist",
            "artists",
            _name("name", _PEOPLE),
            _category("country", "Brazil Canada India Mali Norway"),
            _number("debut", 1960, 2015, 1, "year of the debut"),
        ),
        _table(
            "album",
            "albums",
            _name("title", _TITLES, "title"),
            _category("genre", "jazz folk rock soul"),
            _category("label", "Lotus Meridian Nimbus", "record label"),
            _number("price", 5, 30, 0.5),
            _number("awards", 1, 7, 1, "number of awards", unknown=0.4),
            _date("released", "date of release"),
            parent="artist",
            depth=1,
        ),
        _table(
            "track",
            "tracks",
            _category("mood", "calm happy sad wild"),
            _number("seconds", 60, 500, 5, "length in seconds"),
            _number("plays", 100, 9900, 100, "number of plays"),
            _number("rank", 1, 100, 1, "best chart rank", unknown=0.4),
            parent="album",
            depth=2,
        ),
    ),
)
SPORT = DatabaseSchema(
    name="sport",
    tables=(
        _table(
            "club",
            "clubs",
            _name("name", _words("Arrows Bears Comets Dragons Eagles Foxes Giants Hawks Icebergs Jaguars Knights")),
            _cities(),
            _number("founded", 1880, 2000, 1, "year of foundation"),
        ),
        _table(
            "player",
            "players",
            _name("name", _PEOPLE),
            _category("position", "keeper defender midfielder striker"),
            _category("nation", "Chile Egypt Ghana Japan Wales"),
            _number("value", 50, 900, 10, "market value"),
            _number("goals", 1, 40, 1, "number of goals", unknown=0.3),
            _date("joined", "date of joining"),
            parent="club",
            depth=1,
        ),
        _table(
            "injury",
            "injuries",
            _category("part", "knee ankle shoulder back", "injured part"),
            _number("weeks", 1, 30, 1, "duration in weeks"),
            _date("happened", "date"),
            _date("healed", "date of healing", unknown=0.25),
            parent="player",
            depth=2,
        ),
    ),
)
FARMING = DatabaseSchema(
    name="farming",
    tables=(
        _table(
            "farm",
            "farms",
            _name("name", _TITLES),
            _category("region", "coast hills plain valley"),
            _number("workers", 2, 40, 1, "number of workers"),
        ),
        _table(
            "field",
            "fields",
            _name("code", tuple(f"F-{number}" for number in range(100, 400)), "code"),
            _category("soil", "clay loam sand"),
            _category("watering", "rain canal sprinkler"),
            _number("area", 0.5, 40, 0.5),
            _number("slope", 1, 20, 1, unknown=0.3),
            parent="farm",
            depth=1,
        ),
        _table(
            "harvest",
            "harvests",
            _category("crop", "barley maize potatoes wheat"),
            _number("yield", 1, 90, 0.5),
            _number("losses", 1, 15, 1, "loss in percent", unknown=0.3),
            _date("day", "day"),
            parent="field",
            depth=2,
        ),
    ),
)
SCHEMAS = {world.name: world for world in (COMPANY, SHOP, LIBRARY, CLINIC, AIRLINE, MUSIC, SPORT, FARMING)}
