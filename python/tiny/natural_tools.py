"""Everyday tools with everyday requests. One line: names | description | parameters | request templates.

Parameters: name[/other names][?]:kind; `?` marks optional ones. Kinds: city person email date clock path id phrase url
country language color word, int(a-b), num, bool, or a|b|c for an enumeration.
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
close_account,account_close ; Close a bank account ; account/account_id:id, reason?:phrase ; Close the account {account}. ~ Please close my account {account} because of {reason}. ~ I want to close {account}.
check_balance,get_balance,account_balance ; Check the balance of an account ; account/account_id:id ; What is the balance of {account}? ~ How much money is in {account}? ~ Check the balance of account {account}. ~ Show me my balance on {account}.
get_news,news,headlines ; Get the latest news about a topic ; topic/subject:word, limit/count?:int(1-20) ; What is the latest news about {topic}? ~ Show me {limit} headlines about {topic}. ~ News on {topic} please. ~ Any news about {topic}?
find_recipe,recipe_search,get_recipe ; Find a recipe for a dish ; dish/food:word, servings?:int(1-10) ; How do I cook {dish}? ~ Find a recipe for {dish}. ~ I need a {dish} recipe for {servings} people. ~ Give me a recipe with {dish}.
open_app,launch_app,start_app ; Open an application ; app/name:word ; Open {app}. ~ Launch the {app} app. ~ Start {app} please.
close_app,quit_app,stop_app ; Close an application ; app/name:word, force?:bool ; Close {app}. ~ Quit the {app} app. ~ Stop {app} please.
set_volume,change_volume,volume ; Set the volume ; level/volume:int(0-100) ; Set the volume to {level}. ~ Turn the volume to {level}. ~ Volume {level} please. ~ Make it {level} percent loud.
take_photo,capture_image,camera_shot ; Take a photo with the camera ; camera/device:word, flash?:bool ; Take a photo with the {camera} camera. ~ Take a picture using {camera}. ~ Photo from {camera} please.
list_files,ls,show_directory ; List the files of a folder ; path/folder:path, hidden?:bool ; List the files in {path}. ~ What files are in {path}? ~ Show the folder {path}. ~ Which files does {path} contain?
copy_file,cp,duplicate_file ; Copy a file ; source/from:path, target/to:path ; Copy {source} to {target}. ~ Duplicate {source} as {target}. ~ Make a copy of {source} at {target}.
move_file,mv,relocate_file ; Move a file ; source/from:path, target/to:path ; Move {source} to {target}. ~ Put {source} into {target}. ~ Relocate {source} to {target}.
rename_file,file_rename ; Rename a file ; path/file:path, new_name/name:word ; Rename {path} to {new_name}. ~ Call {path} {new_name} from now on. ~ Change the name of {path} to {new_name}.
create_folder,make_directory,mkdir ; Create a folder ; path/name:path ; Create the folder {path}. ~ Make a directory {path}. ~ I need a new folder {path}.
zip_files,compress_files,make_archive ; Compress files into an archive ; files:list, output?:path ; Zip {files}. ~ Compress {files} into {output}. ~ Make an archive of {files}.
download_file,fetch_file,download ; Download a file from a url ; url/link:url, path?:path ; Download {url}. ~ Get the file {url} and save it as {path}. ~ Save {url} to {path}.
run_tests,test,execute_tests ; Run the tests of a project ; path/target:path, verbose?:bool ; Run the tests in {path}. ~ Test {path}. ~ Execute the tests of {path} please.
edit_file,replace_text,str_replace ; Replace text in a file ; path/file:path, old/old_text:word, new/new_text:word ; Replace {old} with {new} in {path}. ~ In {path}, change {old} to {new}. ~ Edit {path}: {old} becomes {new}.
search_code,grep,find_in_code ; Search a pattern in the source code ; pattern/query:word, path?:path ; Where is {pattern} used? ~ Search the code for {pattern}. ~ Grep {pattern} in {path}. ~ Find {pattern} in the source.
install_package,pip_install,add_package ; Install a package ; package/name:word, version?:version ; Install {package}. ~ Install {package} in version {version}. ~ Add the package {package}. ~ pip install {package}
create_branch,new_branch,git_branch ; Create a git branch ; name/branch:word, base?:word ; Create a branch {name}. ~ New branch {name} from {base}. ~ Make a git branch called {name}.
create_user,add_user,register_user ; Create a user account ; username/name:person, email?:email, admin?:bool ; Create a user {username}. ~ Add {username} with the email {email}. ~ Register a new user called {username}. ~ Make an account for {username} with {email}.
delete_user,remove_user,drop_user ; Delete a user account ; username/name:person ; Delete the user {username}. ~ Remove {username}. ~ Drop the account of {username}.
assign_task,give_task,delegate ; Assign a task to a person ; task/title:phrase, assignee/person:person, due?:date ; Assign {task} to {assignee}. ~ Give {assignee} the task {task}. ~ {assignee} should do {task} until {due}.
add_task,create_task,new_todo ; Add a task to the todo list ; title/task:phrase, priority?:low|medium|high ; Add {title} to my tasks. ~ New todo: {title} ~ Create a task {title} with {priority} priority. ~ I have to {title}.
complete_task,finish_task,mark_done ; Mark a task as done ; task_id/id:id ; Task {task_id} is done. ~ Mark {task_id} as done. ~ I finished {task_id}. ~ Complete task {task_id}.
call_contact,phone_call,make_call ; Call a person on the phone ; name/contact:person ; Call {name}. ~ Phone {name} please. ~ Give {name} a ring. ~ I want to talk to {name}.
book_taxi,order_taxi,request_ride ; Order a taxi ; pickup/from:city, dropoff/to:city, time?:clock ; Get me a taxi from {pickup} to {dropoff}. ~ I need a ride from {pickup} to {dropoff} at {time}. ~ Order a taxi to {dropoff} from {pickup}.
search_hotels,find_hotels,hotels ; Search hotels in a city ; city/location:city, max_price?:int(40-900) ; Find hotels in {city}. ~ Hotels in {city} under {max_price}. ~ Where can I sleep in {city}? ~ Show me hotels in {city}.
search_products,find_product,shop_search ; Search for products in the shop ; query/product:word, max_price?:int(5-2000) ; Search for {query} in the shop. ~ I want to buy {query}. ~ Find {query} for less than {max_price}. ~ Do you have {query}?
add_to_cart,cart_add,put_in_cart ; Put a product into the shopping cart ; product/item:word, quantity/amount:int(1-20) ; Put {quantity} {product} in my cart. ~ Add {quantity} {product} to the cart. ~ I'll take {quantity} {product}.
cancel_order,order_cancel,stop_order ; Cancel an order ; order_id/order:id, reason?:phrase ; Cancel my order {order_id}. ~ I don't want {order_id} any more. ~ Stop order {order_id} because of {reason}. ~ Please cancel {order_id}.
get_order_status,order_status,check_order ; Get the status of an order ; order_id/order:id ; What is the status of order {order_id}? ~ Where is my order {order_id}? ~ Has {order_id} been shipped? ~ Check order {order_id}.
rate_movie,movie_rating,rate_film ; Rate a movie ; title/movie:phrase, stars/rating:int(1-10) ; Give {title} {stars} stars. ~ Rate {title} with {stars}. ~ I rate the movie {title} {stars}.
find_movies,movie_search,search_films ; Search movies ; genre/kind:comedy|drama|action|horror|romance, year?:int(1950-2026) ; Find a {genre} movie. ~ Show me {genre} films from {year}. ~ I want to watch a {genre} movie.
count_letters,letter_count,count_characters ; Count how often a letter occurs in a word ; word/text:word, letter/character:letter ; How many {letter} are in {word}? ~ Count the letter {letter} in {word}. ~ How often does {letter} occur in {word}?
encrypt_text,encrypt,encode_secret ; Encrypt a text with a key ; text/message:phrase, key/password:word ; Encrypt {text} with the key {key}. ~ Encode {text} using {key}.
generate_password,new_password,make_password ; Generate a password ; length/size:int(6-64), symbols?:bool ; Generate a password of {length} characters. ~ I need a password with {length} letters. ~ Make me a {length} character password.
water_garden,irrigate,garden_water ; Water a part of the garden ; zone/area:word, minutes/duration:int(1-60) ; Water the {zone} for {minutes} minutes. ~ Give the {zone} water for {minutes} minutes. ~ Irrigate {zone} {minutes} minutes.
lock_door,door_lock,secure_door ; Lock a door ; door/room:front|back|garage|kitchen|office ; Lock the {door} door. ~ Is the {door} door open? Lock it. ~ Please secure the {door} door.
start_vacuum,vacuum,clean_room ; Start the vacuum robot in a room ; room/area:kitchen|bedroom|bathroom|hall|office ; Vacuum the {room}. ~ Clean the {room}. ~ Send the robot to the {room}.
log_workout,add_workout,track_workout ; Log a workout ; activity/sport:running|swimming|cycling|yoga|rowing, minutes/duration:int(5-240) ; I did {minutes} minutes of {activity}. ~ Log {activity} for {minutes} minutes. ~ Track {minutes} minutes {activity}.
get_exchange_rate,exchange_rate,fx_rate ; Get the exchange rate of two currencies ; base/from:USD|EUR|GBP|JPY|CHF, target/to:SEK|INR|CAD|AUD|NOK ; What is the exchange rate from {base} to {target}? ~ How many {target} for one {base}? ~ {base} to {target} rate
get_population,population,count_people ; Get the population of a country ; country/nation:country ; How many people live in {country}? ~ What is the population of {country}? ~ Population of {country}
mix_colors,blend_colors,color_mix ; Mix two colors ; first/color1:color, second/color2:color ; What do {first} and {second} make? ~ Mix {first} with {second}. ~ Blend {first} and {second}.
feed_pet,pet_feeder,feed ; Feed a pet ; pet/animal:cat|dog|fish|rabbit|bird, grams/amount:int(5-500) ; Feed the {pet} {grams} grams. ~ Give the {pet} {grams} grams of food. ~ The {pet} is hungry, {grams} grams please.
post_tweet,publish_post,share_post ; Publish a post ; text/content:phrase, public?:bool ; Post {text}. ~ Share {text} with my followers. ~ Publish the post {text}.
"""
HELD_OUT = {"define_word", "book_hotel", "track_package", "set_temperature", "lookup_contact", "rename_file", "cancel_order",
            "water_garden"}


def parse(line):
    names, description, parameters, templates = [part.strip() for part in line.split(" ; ")]
    fields = []
    for field in re.split(r",\s+(?=[a-z0-9_/]+\??:)", parameters):
        name, kind = field.split(":", 1)
        optional = name.endswith("?")
        options = name.rstrip("?").split("/")
        fields.append(dict(key=options[0], names=options, optional=optional, kind=kind))
    return dict(names=names.split(","), description=description, fields=fields,
                templates=[t.strip() for t in templates.split(" ~ ")])


ALL = [parse(line) for line in TABLE.strip().splitlines()]


def table(evaluation):
    return [t for t in ALL if (t["names"][0] in HELD_OUT) == evaluation]
