"""Words, names and small facts that the generated tasks are made of, and the split that keeps some for evaluation."""
import re
import zlib

VERBS = """add adjust allocate analyze append apply approve archive arrange assign attach audit authorize backup balance ban
block book browse build calculate cancel capture check classify clean clear clone close collect combine compare compile
compress compute configure confirm connect convert copy count create decode decrypt delete deliver deploy describe detect
disable dispatch display download draft draw edit enable encode encrypt enroll estimate evaluate export extract fetch filter
find fix flag flush format forward generate get grant group hide highlight import index insert inspect install invite join
launch list load locate lock log lookup map mark measure merge migrate monitor mount move mute notify open optimize order
pack parse patch pause pay pin plan play plot post predict preview print process publish purge query queue rank rate read
rebuild record refund register reload remove rename render renew repair replace report request reschedule reserve reset
resize resolve restart restore resume retrieve return reverse review revoke rotate route run sample save scan schedule search
select send set share show shuffle sign skip sort split start stop store stream submit subscribe summarize suspend swap sync
tag test toggle trace track train transfer translate trigger trim unlock update upgrade upload validate verify view vote watch
withdraw write""".split()

NOUNS = """account address agenda alarm album alert alias anchor animal answer apartment app apple archive arena article asset
audio auction backup badge balance ballot band bank banner barrel basket battery beacon bed bell bench bike bill bird block
board boat bond bonus book booking border bottle box branch brand bread bridge brief broadcast broker browser bucket budget
buffer bug building bus button cabin cabinet cable cache cake calendar camera campaign canal candle canvas car card cargo
carpet cart case castle catalog category cell certificate chain chair channel chapter chart chat check checklist circle city
class client clinic clock cloud club coach coast code coin collection color column comment commit company compass component
concert connection contact container contest contract cookie copy corner counter country coupon course court cover crane
credit crop cup currency customer dashboard database dataset deadline deal debt decision delivery demand deposit desert
design desk device diagram dialog diary dictionary digest dinner directory discount dish disk doctor document dog domain door
draft dream driver drone duty editor election elevator email employee engine entry envelope episode error estate event exam
exhibit expense experiment export fabric factory family farm feature feed fence ferry festival field file film filter finger
fire fish flag fleet flight floor flower folder font food forecast forest fork form forum fountain frame friend fruit fuel
function fund furniture gallery game garage garden gate ghost gift glass goal grant graph grid group guest guide habit hall
hammer harbor harvest hat helmet highway hill hole holiday horse hospital hotel house icon idea image incident index
ingredient inspection instance insurance interview inventory invoice island issue item jacket job journal judge key keyboard
kitchen kite label ladder lake lamp language laser lawn layer lead leaf league lease lecture ledger lens lesson letter level
library license light limit line link list loan lobby location lock log loop lottery luggage machine magazine mail mailbox
map market marker mask match matrix meal measure medal medicine meeting member memo memory menu message metric milestone mine
mirror mission mixer model module moment monitor month moon motor mountain mouse movie museum music nail name nation needle
nest network newsletter node note notice novel number oasis object ocean offer office oil olive orbit orchard order organ
outlet oven owner package page paint palace panel paper parade parcel park parser part partner party passage passport
password patch path patient pattern payment peak pencil permit person phone photo piano picture pilot pipe pipeline pixel
place plan planet plant plate player playlist plot pocket podcast poem point policy poll pool port portrait position poster
potato printer prize process product profile program project prompt proposal protocol province pump puzzle quarter query
question queue quiz quota quote race rack radar radio railway rain ranch range receipt recipe record region registry release
reminder rental repair replica report repository request reservation resource restaurant result reward ring river road robot
rocket roof room root rope roster rota route router row ruler sail salad salary sample sandwich satellite scene schedule
school score screen script sea season seat section seed segment sensor sentence series server service session shelf shift
ship shipment shirt shop signal site sketch skill slide slot snapshot snippet soil song sound source space speaker spec
speech spell spring square stadium staff stage stamp star station statue status stock storage store storm story stove stream
street string studio style subject subscription suite summary supplier survey switch symbol system table tag tank target task
tax taxi team template tenant tent terminal test theater theme thread ticket tide tile timeline timer title toggle token tool
topic tournament tower town toy track tractor trade traffic trail train transcript translation tray treaty tree trial trip
truck tunnel turbine tutorial umbrella unit universe upload user valley value valve van variable vault vehicle vendor venue
version vessel video village vine violin visa visitor voice volume voucher voyage wagon wall wallet warehouse warranty watch
water wave weather wedding well wheel widget wind window wine wing winner wire wish witness wolf workflow workshop world yard
yacht zone""".split()

ADJECTIVES = """active annual archived automatic backup basic big blue bright bulk busy central clean cloud cold common compact
complete crisp current custom daily dark deep default digital direct draft dry early east empty external famous fast final
first foreign free fresh full global golden gray green happy heavy hidden high hot hourly idle internal joint large last late
latest light little local lonely long loud lucky main major manual merged minor mobile modern monthly narrow national new next
north old open orange outdoor partial pending personal plain portable private public purple quick quiet random rapid rare raw
recent red regional regular remote rough round royal rural secret secure shared short silent silver simple slow small smart
smooth soft solar south special spare stable steady strict strong sunny tall temporary tiny total urban urgent valid vital
warm weekly west white wide wild wireless yearly yellow young""".split()

CITIES = """Amsterdam Athens Auckland Baghdad Bangkok Barcelona Beijing Berlin Bern Bogota Boston Brisbane Brussels Bucharest
Budapest Cairo Caracas Chicago Copenhagen Dakar Dallas Delhi Denver Detroit Dhaka Dublin Edinburgh Florence Geneva Glasgow
Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Johannesburg Kampala Karachi Kyiv Kyoto Lagos Lima Lisbon London Lyon
Madrid Malaga Manila Marseille Melbourne Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Osaka Oslo Ottawa Paris
Perth Porto Prague Quito Reykjavik Riga Rome Santiago Seattle Seoul Seville Shanghai Singapore Sofia Stockholm Sydney Tallinn
Tehran Tokyo Toronto Tunis Turin Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington Zagreb Zürich Málaga
Köln Århus Kraków""".split() + ["New York", "San Francisco", "Los Angeles", "Buenos Aires", "Cape Town", "Hong Kong",
                                "Kuala Lumpur", "Mexico City", "Rio de Janeiro", "São Paulo", "Tel Aviv", "Abu Dhabi"]

FIRST_NAMES = """Ada Alan Alma Amir Anna Arjun Bela Bruno Carla Chen Clara Dana David Diego Elena Emil Emma Eva Felix Fiona
Greta Hana Hugo Ida Igor Ines Ivan Jana Jonas Julia Kai Karim Kira Lars Lea Leo Lena Liam Lina Luca Lucia Maja Marco Maria
Mila Mina Nadia Nils Nina Noah Nora Olga Omar Oscar Otto Paula Pavel Petra Rosa Ravi Rita Sam Sara Sofia Sven Tara Theo Tina
Tom Uma Vera Viktor Yara Yuki Zoe""".split()

CAPITALS = """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna Belgium:Brussels
Netherlands:Amsterdam Denmark:Copenhagen Sweden:Stockholm Norway:Oslo Finland:Helsinki Iceland:Reykjavik Ireland:Dublin
Poland:Warsaw Czechia:Prague Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Greece:Athens Turkey:Ankara Russia:Moscow
Ukraine:Kyiv Estonia:Tallinn Latvia:Riga Lithuania:Vilnius Croatia:Zagreb Serbia:Belgrade Slovenia:Ljubljana
Slovakia:Bratislava Switzerland:Bern Egypt:Cairo Morocco:Rabat Tunisia:Tunis Kenya:Nairobi Ethiopia:Addis_Ababa Ghana:Accra
Nigeria:Abuja Senegal:Dakar Uganda:Kampala China:Beijing Japan:Tokyo India:New_Delhi Thailand:Bangkok Vietnam:Hanoi
Indonesia:Jakarta Malaysia:Kuala_Lumpur Philippines:Manila Nepal:Kathmandu Pakistan:Islamabad Bangladesh:Dhaka Iran:Tehran
Iraq:Baghdad Jordan:Amman Lebanon:Beirut Qatar:Doha Canada:Ottawa Mexico:Mexico_City Cuba:Havana Brazil:Brasília
Argentina:Buenos_Aires Chile:Santiago Peru:Lima Colombia:Bogotá Venezuela:Caracas Ecuador:Quito Uruguay:Montevideo
Australia:Canberra England:London Scotland:Edinburgh""".split()
CAPITALS = {k: v.replace("_", " ") for k, v in (pair.split(":") for pair in CAPITALS)}

SYMBOLS = dict(pair.split(":") for pair in """hydrogen:H helium:He lithium:Li carbon:C nitrogen:N oxygen:O fluorine:F neon:Ne
sodium:Na magnesium:Mg aluminium:Al silicon:Si phosphorus:P sulfur:S chlorine:Cl argon:Ar potassium:K calcium:Ca titanium:Ti
chromium:Cr iron:Fe cobalt:Co nickel:Ni copper:Cu zinc:Zn silver:Ag tin:Sn iodine:I gold:Au mercury:Hg lead:Pb
uranium:U""".split())

OPPOSITES = dict(pair.split(":") for pair in """hot:cold big:small up:down left:right open:closed full:empty early:late fast:slow
high:low hard:soft heavy:light old:new rich:poor strong:weak tall:short thick:thin true:false wet:dry wide:narrow young:old
near:far loud:quiet clean:dirty dark:bright cheap:expensive easy:difficult sharp:blunt smooth:rough inside:outside
above:below day:night north:south east:west""".split())

SYNONYMS = {k: v.split("/") for k, v in (pair.split(":") for pair in """add:include/insert approve:accept archive:store book:reserve
build:make/construct calculate:compute/work_out cancel:call_off/drop check:look_at/test clean:tidy_up clear:empty/wipe
clone:copy/duplicate close:shut collect:gather combine:merge/join compare:contrast compute:calculate confirm:verify
convert:turn/change copy:duplicate create:make/set_up delete:remove/erase/get_rid_of deliver:bring deploy:roll_out/ship
describe:explain disable:turn_off/switch_off display:show download:get/fetch draw:sketch edit:change/modify
enable:turn_on/switch_on fetch:get/bring_me find:look_for/search fix:repair/correct forward:pass_on generate:make/produce
grant:give hide:conceal inspect:look_at/examine install:set_up launch:start list:show/name locate:find/look_for lock:secure
lookup:look_up/find measure:determine merge:combine monitor:watch move:shift notify:tell/inform open:show pause:halt pay:settle
play:start predict:forecast print:output publish:release/post query:ask/look_up read:show/open record:write_down
remove:delete/take_away rename:call repair:fix replace:swap/exchange request:ask_for resize:scale restart:reboot
retrieve:get/fetch review:check/look_over run:execute/start save:store/keep schedule:plan search:look_for/find select:choose/pick
send:mail share:give show:display/list sort:order start:begin/launch stop:end/halt summarize:sum_up swap:exchange
test:try/check track:follow transfer:move/send translate:convert trigger:start/fire update:change/refresh upload:send
validate:check verify:check/confirm view:show/see watch:observe write:put_down""".split())}
SYNONYMS = {k: [w.replace("_", " ") for w in v] for k, v in SYNONYMS.items()}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()

PYTHON_FACTS = {
    "len": "returns the number of items in a container", "sum": "adds up the items of an iterable",
    "max": "returns the largest item", "min": "returns the smallest item", "sorted": "returns a new sorted list",
    "abs": "returns the absolute value of a number", "range": "produces a sequence of integers",
    "enumerate": "yields pairs of index and item", "zip": "pairs up items of several iterables",
    "map": "applies a function to every item", "filter": "keeps the items for which a function is true",
    "isinstance": "checks whether an object has a given type", "open": "opens a file and returns a file object",
    "print": "writes its arguments to standard output", "input": "reads a line from standard input",
    "reversed": "iterates over a sequence backwards", "any": "is true if at least one item is true",
    "all": "is true if every item is true", "round": "rounds a number to a given number of digits",
    "ord": "returns the code point of a character", "chr": "returns the character of a code point",
    "hex": "converts an integer to a hexadecimal string", "divmod": "returns quotient and remainder",
    "type": "returns the type of an object", "id": "returns the identity of an object",
    "hash": "returns the hash of an object", "iter": "returns an iterator", "next": "fetches the next item of an iterator"}

SYSTEMS = ["You are a helpful assistant.", "Be brief.", "You are a coding assistant.", "Agent.", "Answer in one sentence.",
           "You are a careful assistant. Use the tools when they help.", "You help users with their daily tasks.",
           "You are an assistant with access to tools.", "Reply politely and shortly.", "You are a test assistant.",
           "You are the assistant of a small company.", "Only call a tool when it fits the request."]


def held_out(word):
    """True for about a tenth of all words: those never appear in a training tool and are the evaluation's vocabulary."""
    return zlib.crc32(word.encode()) % 10 == 0


def split(words, evaluation):
    return [w for w in words if held_out(w) == evaluation]


def corpus_words(counts, limit=9000):
    """Plain lower-case words of the code corpus, most frequent first: more nouns than anyone would write by hand."""
    ranked = sorted(counts, key=lambda w: (-counts[w], w))
    return [w for w in ranked if re.fullmatch(r"[a-z]{4,10}", w)][:limit]
