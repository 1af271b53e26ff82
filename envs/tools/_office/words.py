"""What people, meetings, mails, files and tickets are called."""

_FIRST = (
    "Aino Amara Anton Beatriz Boris Carla Chen Dalia Dmitri Elena Emeka Farid Freya Gita Goran Hana Hugo Ines Ivo Jana "
    "Jorge Kaito Karin Lara Leif Malik Maren Nadia Niko Olga Oskar Paolo Petra Quentin Rania Ruben Sana Selma Tariq "
    "Tove Ulla Vera Viktor Wanda Xenia Yara Yusuf Zora"
)
_LAST = (
    "Abel Almeida Baker Bergman Castro Chopra Dahl Demir Eriksen Falk Ferrari Gruber Haddad Hansen Ito Jansen Kaya "
    "Keller Kovacs Larsen Lopez Marek Moreau Nakamura Novak Okafor Olsen Pereira Popov Quist Rossi Ruiz Sato Schmid "
    "Silva Tanaka Thorne Usman Vance Varga Weber Wolff Yilmaz Zeller"
)
FIRST_NAMES, LAST_NAMES = tuple(_FIRST.split()), tuple(_LAST.split())
COMPANIES = ("alderworks", "brightharbor", "cedarline", "fernhill", "northquay", "oakbridge", "silverbay", "tidewater")
PARTNERS = ("Bellmont Supplies", "Cartwright Legal", "Duna Logistics", "Everest Print", "Galaxy Catering", "Halden IT")
TEAMS = {
    "Design": ("Head of Design", "Designer"),
    "Engineering": ("Engineering Lead", "Engineer"),
    "Finance": ("Finance Lead", "Accountant"),
    "Legal": ("Head of Legal", "Counsel"),
    "Marketing": ("Head of Marketing", "Marketer"),
    "Operations": ("Operations Lead", "Coordinator"),
    "Sales": ("Head of Sales", "Account Manager"),
    "Support": ("Support Lead", "Support Agent"),
}
"""Team -> titles of its lead and of the others."""

EVENTS = (
    "Audit preparation",
    "Board update",
    "Brand workshop",
    "Budget review",
    "Campaign kickoff",
    "Capacity planning",
    "Contract walkthrough",
    "Customer interview",
    "Data migration call",
    "Design critique",
    "Hiring panel",
    "Incident review",
    "Inventory check",
    "Invoice clearing",
    "Launch rehearsal",
    "Market briefing",
    "Office move meeting",
    "Onboarding session",
    "Partner call",
    "Pricing discussion",
    "Product demo",
    "Quarterly forecast",
    "Release planning",
    "Roadmap session",
    "Security briefing",
    "Supplier negotiation",
    "Team retrospective",
    "Training day planning",
    "Usability test",
    "Vendor selection",
)
NEW_EVENTS = (
    "Backlog review",
    "Coffee with the new hires",
    "Cost check",
    "Handover talk",
    "Interview debrief",
    "Lessons learned",
    "Metrics review",
    "Policy refresh",
    "Project kickoff",
    "Risk review",
    "Skills exchange",
    "Status call",
)
PLACES = ("Room Birch", "Room Cedar", "Room Elm", "Room Maple", "Room Oak", "Room Pine", "Room Willow", "Video call")

MAILS = (
    ("Agenda for the offsite", "The draft agenda is ready. Tell me if a topic is missing."),
    ("Badge for the new entrance", "The new badges can be collected at the front desk from Monday on."),
    ("Broken projector", "The projector in the large room flickers. I have told the technician."),
    ("Catering options", "We have three offers for the summer event. The second one is the cheapest."),
    ("Comments on the draft", "I have read the draft and left a few comments at the margins."),
    ("Delivery delayed", "The delivery comes two days later than planned because of the weather."),
    ("Expense policy", "Please remember that receipts must be handed in within thirty days."),
    ("Feedback from the workshop", "The participants liked the exercises but wanted longer breaks."),
    ("Guest list", "Here is the guest list as it stands. Two people have not answered yet."),
    ("Holiday calendar", "The holiday calendar for next year is out. Please enter your plans."),
    ("Insurance renewal", "The insurance ends next month. The renewal form is attached to the contract."),
    ("Job advert", "The advert is online since this morning. We already have four applications."),
    ("Keys for the storage room", "I still have the second key. I can bring it tomorrow."),
    ("Late invoice", "The invoice of last month has not been paid. Could somebody look into it?"),
    ("Minutes of the last meeting", "I have written down what we decided. Tell me if something is wrong."),
    ("Newsletter topics", "We need three more topics for the newsletter by the end of the week."),
    ("Order confirmation", "Your order has been received and will be shipped soon."),
    ("Parking spaces", "From next week on there are only twelve parking spaces behind the building."),
    ("Question about the contract", "Clause seven is not clear to me. Who can explain it?"),
    ("Request for photos", "We need two photos of the new product for the website."),
    ("Slides for the conference", "My slides are nearly done. I still need the numbers of last quarter."),
    ("Software licences", "Three licences end this month. Shall we renew all of them?"),
    ("Travel plans", "I arrive on Tuesday evening and leave on Thursday after lunch."),
    ("Water damage", "There was water on the floor of the basement this morning."),
)
"""Subject and text."""

TICKETS = (
    ("Cannot sign in to the portal", "The portal says that the password is wrong, but it is not."),
    ("Coffee machine is leaking", "There is water under the coffee machine on the second floor."),
    ("Customer list shows duplicates", "Several customers are listed twice since the last import."),
    ("Door sensor does not react", "The door to the archive opens only at the third attempt."),
    ("Exported report is empty", "The monthly report has headings but no rows."),
    ("Headset without sound", "The left side of the headset is silent."),
    ("Invoice has the wrong address", "The invoice still shows the address of the old building."),
    ("Laptop battery lasts an hour", "The battery of the laptop is empty after an hour."),
    ("Mailbox is full", "New messages are rejected because the mailbox is full."),
    ("Monitor stays dark", "The second monitor stays dark after a restart."),
    ("New starter needs an account", "Somebody new begins next week and needs an account."),
    ("Page loads slowly", "The start page takes ten seconds to load in the morning."),
    ("Phone number is not reachable", "Callers hear that the number is not known."),
    ("Printer jams", "The printer near the kitchen jams on every tenth sheet."),
    ("Room display shows the wrong time", "The display at the large room is an hour ahead."),
    ("Search finds no attachments", "The search finds texts but none of the attachments."),
    ("Shared calendar does not update", "Changes appear only on the next day."),
    ("Spelling mistake on the home page", "There is a spelling mistake in the first headline."),
    ("Vacation request is stuck", "The request is waiting for an approval that was given already."),
    ("Video freezes in calls", "The picture freezes after a few minutes while the sound goes on."),
    ("Virus scanner blocks the update", "The update is deleted by the virus scanner."),
    ("Wrong tax on receipts", "Receipts show the tax rate of last year."),
)
"""Title and text."""

FILES = (
    ("/contracts", "cleaning.txt", "Cleaning contract. Ends in December. Notice: three months."),
    ("/contracts", "lease.txt", "Lease of the office. Two floors. Runs for five years."),
    ("/contracts", "printers.txt", "Rental of six printers. Service within two days."),
    ("/notes", "interviews.txt", "Ask about teamwork, about a failure, and about the first week."),
    ("/notes", "kitchen.txt", "Everybody empties the dishwasher once a week."),
    ("/notes", "onboarding.txt", "Day one: laptop, badge, tour. Day two: accounts. Day three: first task."),
    ("/notes", "travel_tips.txt", "Book trains early. Keep every receipt."),
    ("/plans", "launch.txt", "Week 1: texts. Week 2: pictures. Week 3: press. Week 4: launch."),
    ("/plans", "moving.txt", "Pack on Thursday, move on Friday, unpack on Monday."),
    ("/plans", "roadmap.txt", "First half: search and export. Second half: mobile app."),
    ("/plans", "training.txt", "Two courses for each person and year."),
    ("/reports", "energy.txt", "The building used less energy than last year."),
    ("/reports", "survey.txt", "Most people are content. The canteen is not liked."),
    ("/reports", "visitors.txt", "More visitors in spring than in autumn."),
)
"""Folder, name and content."""
FOLDERS = ("/archive", "/contracts", "/notes", "/plans", "/reports")
COMMENTS = ("I have seen this too.", "It happened again this morning.", "Waiting for an answer.")
REPLIES = (
    "Thank you, that works for me.",
    "I will look at it tomorrow.",
    "Please go ahead as planned.",
    "Let us talk about it next week.",
    "That is fine with me.",
    "I need two more days for this.",
)
NOTES = (
    "Please have a look at this.",
    "Can you take this over?",
    "This may concern your team.",
    "For your information.",
)
