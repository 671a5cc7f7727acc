"""Everyday tools with everyday requests. One line: names | description | parameters | request templates.

Parameters: name[/other names][?]:kind; `?` marks optional ones. Kinds: city person email date clock path id phrase url
country language color word, int(a-b), num, bool, list, or a|b|c for an enumeration.
Tools whose first name is in HELD_OUT never occur in training.
"""
import re

TABLE = """
get_weather,weather,weather_lookup,fetch_weather,current_weather ; Get the weather for a city ; city/location/place:city, days?:int(1-14), unit?:celsius|fahrenheit ; What's the weather in {city}? ~ How is the weather in {city} today? ~ Weather in {city} for the next {days} days ~ Tell me the weather in {city} in {unit}. ~ Will it rain in {city}? ~ I need a {days} day forecast for {city}. ~ What is the temperature in {city} in {unit}? ~ weather {city} please ~ What's the weather like in {city} right now?
get_time,current_time,time_in_city ; Get the current time in a city ; city/location:city ; What time is it in {city}? ~ Tell me the current time in {city}. ~ time in {city} ~ What's the local time in {city}?
send_email,email_send,compose_email ; Send an email ; to/recipient:email, subject:phrase, body?:phrase ; Send an email to {to} with the subject {subject}. ~ Email {to} about {subject}. ~ Write to {to}, subject {subject}, saying {body}. ~ Please send {to} an email with subject {subject} and body {body}.
send_message,message_user,text_contact ; Send a text message to a person ; recipient/person/to:person, message/text:phrase ; Tell {recipient} that {message}. ~ Send a message to {recipient}: {message} ~ Text {recipient} {message}. ~ Message {recipient} saying {message}.
create_event,add_event,calendar_add ; Add an event to the calendar ; title:phrase, date:date, time?:clock ; Put {title} in my calendar on {date}. ~ Schedule {title} for {date} at {time}. ~ Create an event called {title} on {date}. ~ Add {title} on {date} at {time} to my calendar.
set_reminder,remind_me,add_reminder ; Set a reminder ; text/task:phrase, time/at:clock ; Remind me to {text} at {time}. ~ Set a reminder for {time}: {text}. ~ At {time} remind me about {text}.
set_timer,start_timer,timer ; Start a countdown timer ; minutes:int(1-120) ; Set a timer for {minutes} minutes. ~ Start a {minutes} minute timer. ~ Timer for {minutes} minutes please.
set_alarm,alarm,wake_up ; Set an alarm ; time:clock ; Wake me up at {time}. ~ Set an alarm for {time}. ~ I need an alarm at {time}.
play_music,play_song,start_music ; Play a song or an artist ; query/song:phrase, volume?:int(0-100) ; Play {query}. ~ I want to hear {query}. ~ Put on {query} at volume {volume}. ~ Play {query} with the volume at {volume}.
convert_currency,currency_convert,exchange ; Convert an amount of money ; amount:int(1-9999), from/source:USD|EUR|GBP|JPY|CHF, to/target:SEK|INR|CAD|AUD|NOK ; Convert {amount} {from} to {to}. ~ How much is {amount} {from} in {to}? ~ What are {amount} {from} in {to}? ~ Change {amount} {from} into {to}.
translate_text,translate,translator ; Translate text into a language ; text:phrase, language/target_language:language ; Translate {text} into {language}. ~ How do you say {text} in {language}? ~ Please translate {text} to {language}. ~ What is {text} in {language}?
search_files,find_files,file_search ; Search files by name or text ; query/pattern:word, path/directory?:path, recursive?:bool ; Find files that contain {query}. ~ Search for {query} in {path}. ~ Look for {query}. ~ Which files mention {query}? ~ Search {path} for {query}.
read_file,open_file,cat_file ; Read a file ; path/file:path ; Show me {path}. ~ Read the file {path}. ~ What is in {path}? ~ Open {path} please. ~ Print the contents of {path}.
write_file,save_file,create_file ; Write text to a file ; path/file:path, content/text:phrase ; Write {content} to {path}. ~ Save {content} in {path}. ~ Create {path} with the content {content}.
delete_file,remove_file,rm ; Delete a file ; path/file:path, force?:bool ; Delete {path}. ~ Remove the file {path}. ~ Get rid of {path}.
run_command,shell,execute ; Run a shell command ; command/cmd:command, timeout?:int(1-600) ; Run {command}. ~ Execute {command} with a timeout of {timeout} seconds. ~ Please run {command} in the shell. ~ Run the command {command}.
git_commit,commit,commit_changes ; Commit the staged changes ; message:phrase ; Commit with the message {message}. ~ Commit my changes: {message} ~ Make a commit saying {message}.
web_search,search_web,search ; Search the web ; query/q:phrase, limit/max_results?:int(1-20) ; Search the web for {query}. ~ Look up {query} online. ~ Find {limit} results about {query}. ~ Google {query}.
get_stock_price,stock_price,quote ; Get the price of a stock ; symbol/ticker:AAPL|MSFT|NVDA|SAP|TSLA|AMZN|GOOG|INTC|ORCL|IBM ; What is the price of {symbol}? ~ How is {symbol} trading? ~ Stock price of {symbol} please. ~ What's {symbol} at today?
search_flights,find_flights,flights ; Search for flights ; origin/from:city, destination/to:city, date?:date ; Find flights from {origin} to {destination}. ~ I want to fly from {origin} to {destination} on {date}. ~ Flights {origin} to {destination} on {date} please.
book_hotel,reserve_hotel,hotel_booking ; Book a hotel room ; city/location:city, nights:int(1-21), guests?:int(1-6) ; Book a hotel in {city} for {nights} nights. ~ I need a room in {city} for {nights} nights for {guests} people. ~ Reserve {nights} nights in {city}.
book_table,reserve_table,restaurant_booking ; Book a table at a restaurant ; restaurant/name:surname, people/guests:int(1-12), time:clock ; Book a table for {people} at {restaurant} at {time}. ~ Reserve a table at {restaurant} for {people} people at {time}.
set_light,control_light,lights ; Switch a light on or off ; room:kitchen|bedroom|bathroom|hall|office|garage|garden, on/state:bool ; Set the light in the {room} to {on}. ~ Light in the {room}: {on}
set_temperature,thermostat,set_thermostat ; Set the temperature of a room ; room:kitchen|bedroom|bathroom|hall|office, temperature/degrees:num ; Set the {room} to {temperature} degrees. ~ Make it {temperature} degrees in the {room}. ~ Heat the {room} to {temperature}.
create_ticket,open_ticket,new_issue ; Open a ticket ; title/summary:phrase, priority?:low|medium|high|critical ; Open a ticket: {title}. ~ Create a {priority} priority ticket called {title}. ~ File an issue titled {title}. ~ New ticket {title} with priority {priority}.
convert_units,unit_convert,units ; Convert between units ; value:num, from/from_unit:km|kg|liters|meters|inches, to/to_unit:miles|pounds|gallons|feet|centimeters ; Convert {value} {from} to {to}. ~ How many {to} are {value} {from}? ~ What is {value} {from} in {to}?
define_word,dictionary,define ; Look up a word in the dictionary ; word/term:word ; What does {word} mean? ~ Define {word}. ~ Look up the word {word}. ~ Give me the definition of {word}.
track_package,track_parcel,package_status ; Track a package ; tracking_id/number:id ; Where is my package {tracking_id}? ~ Track {tracking_id}. ~ What's the status of parcel {tracking_id}?
transfer_money,bank_transfer,pay ; Transfer money to a person ; amount:int(1-9999), recipient/to:person, note?:phrase ; Send {amount} to {recipient}. ~ Transfer {amount} to {recipient} with the note {note}. ~ Pay {recipient} {amount}.
http_get,fetch_url,get_page ; Fetch a web page ; url:url ; Fetch {url}. ~ What is on {url}? ~ Download {url}. ~ Get the page {url}.
random_number,roll,draw_number ; Draw a random number ; low/min:int(0-50), high/max:int(51-1000) ; Give me a random number between {low} and {high}. ~ Pick a number from {low} to {high}. ~ Draw a random number, {low} to {high}.
resize_image,scale_image,image_resize ; Resize an image ; path/image:path, width:int(10-4000), height:int(10-4000) ; Resize {path} to {width} by {height}. ~ Scale {path} to {width} x {height}. ~ Make {path} {width} wide and {height} high.
add_to_list,list_add,shopping_add ; Add items to a list ; items:list ; Put {items} on my list. ~ Add {items} to the list. ~ I need {items} on the shopping list.
get_directions,route,directions ; Get directions between two places ; start/origin:city, end/destination:city, mode?:car|train|bike|foot ; How do I get from {start} to {end}? ~ Directions from {start} to {end} by {mode}. ~ Route from {start} to {end} please.
order_food,order_pizza,food_order ; Order food ; dish/item:word, quantity/count:int(1-12), address?:phrase ; Order {quantity} {dish}. ~ I'd like {quantity} {dish} delivered to {address}. ~ Get me {quantity} {dish} please.
lookup_contact,find_contact,get_contact ; Look up a contact ; name/person:person ; What is the number of {name}? ~ Find {name} in my contacts. ~ Look up {name}. ~ How can I reach {name}?
calculate,calculator,evaluate_expression ; Evaluate an arithmetic expression ; expression:sum ; Calculate {expression}. ~ What is {expression}? Use the calculator. ~ Use the tool to compute {expression}.
query_database,run_query,sql ; Run a query on a database table ; table:word, limit?:int(1-500), order_by?:word ; Show the first {limit} rows of {table}. ~ Query the table {table} ordered by {order_by}. ~ List everything in {table}. ~ Give me {limit} rows from {table} sorted by {order_by}.
"""
HELD_OUT = {"define_word", "book_hotel", "track_package", "set_temperature", "lookup_contact"}


def parse(line):
    names, description, parameters, templates = [part.strip() for part in line.split(" ; ")]
    fields = []
    for field in re.split(r",\s+(?=[a-z_/]+\??:)", parameters):
        name, kind = field.split(":", 1)
        optional = name.endswith("?")
        options = name.rstrip("?").split("/")
        fields.append(dict(key=options[0], names=options, optional=optional, kind=kind))
    return dict(names=names.split(","), description=description, fields=fields,
                templates=[t.strip() for t in templates.split(" ~ ")])


ALL = [parse(line) for line in TABLE.strip().splitlines()]


def table(evaluation):
    return [t for t in ALL if (t["names"][0] in HELD_OUT) == evaluation]
