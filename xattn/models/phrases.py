"""The words and templates of the sentence generator.

The terms of a topic are its evidence, all other words are picked to tell nothing about any topic. Terms of the test
sentences never occur in training sentences, so a classifier has to know what a word means to be right.
"""

TRAIN_TERMS: dict[str, tuple[str, ...]] = {
    "animals": (
        *("elephant", "squirrel", "rabbit", "penguins", "giraffe", "wolf", "crocodile", "owl", "hedgehog", "zebra"),
        *("kangaroo", "polar bear", "leopard", "camel", "parrot", "donkey", "sheep", "gorilla", "lizard", "fox"),
    ),
    "astronomy": (
        *("telescope", "galaxy", "comet", "asteroid", "planets", "gas giant", "big bang", "supernova", "constellation"),
        *("meteor shower", "astronauts", "black hole", "spacecraft", "nebula", "quasar", "solar eclipse", "cosmos"),
        *("rocket launch", "space station", "Martian crater"),
    ),
    "food": (
        *("pancakes", "soup", "cheese", "lasagna", "sandwich", "noodles", "chocolate", "bread", "curry", "salad"),
        *("apple pie", "omelette", "bacon", "pasta", "fried rice", "pudding", "cookies", "potato", "butter", "pumpkin"),
    ),
    "medicine": (
        *("surgeon", "vaccine", "antibiotics", "diagnosis", "stethoscope", "blood pressure", "nurse", "pneumonia"),
        *("malaria", "diabetes", "therapist", "chemotherapy", "clinic", "asthma", "ambulance", "prescription"),
        *("fracture", "dialysis", "infection", "fever"),
    ),
    "music": (
        *("violin", "orchestra", "symphony", "guitar", "drummer", "string quartet", "melody", "saxophone", "choir"),
        *("pianist", "opera", "trumpet", "ukulele", "ballad", "jazz trio", "flute", "concerto", "cello", "harpsichord"),
        "lullaby",
    ),
    "sport": (
        *("football", "marathon", "goalkeeper", "field hockey", "tennis", "referee", "basketball", "rugby scrum"),
        *("penalty kick", "gymnasts", "sprinter", "baseball", "volleyball", "cyclists", "boxing", "championship"),
        *("javelin", "relay race", "badminton", "wrestling"),
    ),
}

TEST_TERMS: dict[str, tuple[str, ...]] = {
    "animals": (
        "tiger",
        "dolphins",
        "hamster",
        "monkey",
        "lion",
        "whales",
        "goat",
        "eagle",
        "turtle",
        "antelope",
    ),
    "astronomy": (
        *("stars", "Milky Way", "satellite", "moon", "observatory", "spaceship", "astronomer", "meteorite", "orbit"),
        "lunar module",
    ),
    "food": (
        *("pizza", "spaghetti", "cheesecake", "steak", "tomato sauce", "cereal", "stew", "biscuits", "ice cream"),
        "cabbage",
    ),
    "medicine": (
        *("doctor", "insulin", "hospital", "migraine", "heart attack", "dentist", "influenza", "cancer", "patient"),
        "arthritis",
    ),
    "music": (
        *("piano", "clarinet", "brass band", "singer", "sonata", "bagpipes", "concert", "composer", "drums"),
        "trombone",
    ),
    "sport": (
        *("soccer", "cricket match", "golfer", "Olympics", "swimmers", "striker", "handball", "archery", "triathlon"),
        "lacrosse",
    ),
}

FILLERS: dict[str, tuple[str, ...]] = {
    "name": ("Anna", "Peter", "Rosalind", "Thomas", "Julia", "Winifred", "Clara", "Victor", "Cordelia", "Oscar"),
    "person": ("neighbour", "cousin", "bystander", "visitor", "stranger", "passerby", "clerk", "lawyer", "plumber"),
    "place": (
        "office",
        "hallway",
        "library",
        "vestibule",
        "garage",
        "attic",
        "laundromat",
        "bank",
        "cubicle",
        "school",
    ),
    "thing": ("letter", "notebook", "clipboard", "ladder", "suitcase", "stapler", "lamp", "chair", "doormat", "bucket"),
    "adj": ("quiet", "lopsided", "grey", "strange", "small", "nondescript", "plain", "dusty", "narrow", "cluttered"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "time": ("night", "morning", "meeting", "week", "fortnight", "month", "conversation"),
}
"""Words that tell nothing, by the place they take in a template.

Three in ten of them have several word pieces, so that over a sentence terms have hardly more pieces than other words:
relevance summed over a word's pieces would otherwise find the terms by their length.
"""

ONE_TOPIC: tuple[str, ...] = (
    "On {day} my {person} told us about the {0} while we waited in the {place}.",
    "The {person} put a {adj} {thing} next to the {0} and walked back to the {place}.",
    "Nobody in the {place} had noticed the {0} until the {person} moved the {adj} {thing}.",
    "After a {adj} {time} in the {place}, {name} wrote on the {thing} about the {0}.",
    "{name} asked the {person} twice about the {0}, then picked up the {thing} and left.",
    "What {name} remembered of that {time} was the {0}, not the {thing} in the {place}.",
    "There was a {adj} drawing of the {0} on the {thing} that {name} kept in the {place}.",
    "Everyone at the {place} talked about the {0}, even the {adj} {person} who came on {day}.",
    "The {0} was all that {name} and the {person} talked about during the {time}.",
    "It was {day}, and the {adj} {person} from the {place} only thought of the {0}.",
)

TWO_TOPICS: tuple[str, ...] = (
    "{name} talked about the {0} on {day}, but the {person} wanted to hear about the {1}.",
    "The {person} drew the {0} on one side of the {thing} and the {1} on the other.",
    "Between the {0} and the {1} stood a {adj} {thing} that nobody in the {place} had moved.",
    "On {day} the {adj} {person} asked about the {0}, and {name} in the {place} asked about the {1}.",
    "{name} kept two pictures in the {place}: one of the {0} and a {adj} one of the {1}.",
    "First {name} mentioned the {0}, then a {adj} {thing}, and after a {time} in the {place} the {1}.",
    "The {0} reminded the {person} of a {time} with {name}, a {adj} {thing} and the {1}.",
    "Was it the {0} or the {1} that {name} forgot in the {place} on {day}?",
)
