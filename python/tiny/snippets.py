"""Small well-known Python functions with the ways in which people ask for them."""

TABLE = '''
is_prime | checks whether a number is prime ~ returns True if n is a prime number
def is_prime(n):
    if n < 2:
        return False
    i = 2
    while i * i <= n:
        if n % i == 0:
            return False
        i += 1
    return True
---
factorial | computes the factorial of n ~ returns n factorial
def factorial(n):
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result
---
fibonacci | returns the n-th Fibonacci number ~ computes Fibonacci numbers
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
---
gcd | computes the greatest common divisor of two numbers ~ returns the gcd of a and b
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a
---
lcm | computes the least common multiple of two numbers
def lcm(a, b):
    x, y = a, b
    while y:
        x, y = y, x % y
    return a * b // x
---
reverse_string | reverses a string ~ returns the string backwards
def reverse_string(text):
    return text[::-1]
---
is_palindrome | checks whether a string is a palindrome ~ returns True if a text reads the same backwards
def is_palindrome(text):
    text = text.lower()
    return text == text[::-1]
---
count_vowels | counts the vowels in a string ~ returns the number of vowels
def count_vowels(text):
    return sum(1 for c in text.lower() if c in "aeiou")
---
count_words | counts the words in a text ~ returns how many words a string has
def count_words(text):
    return len(text.split())
---
word_frequencies | counts how often each word occurs ~ returns a dictionary of word counts
def word_frequencies(text):
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts
---
flatten | flattens a list of lists ~ turns a nested list into a flat list
def flatten(items):
    result = []
    for item in items:
        if isinstance(item, list):
            result.extend(flatten(item))
        else:
            result.append(item)
    return result
---
unique | removes duplicates from a list and keeps the order ~ returns the unique items of a list
def unique(items):
    seen = set()
    result = []
    for item in items:
        if item not in seen:
            seen.add(item)
            result.append(item)
    return result
---
bubble_sort | sorts a list with bubble sort ~ implements bubble sort
def bubble_sort(items):
    items = list(items)
    for i in range(len(items)):
        for j in range(len(items) - 1 - i):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items
---
quicksort | sorts a list with quicksort ~ implements quicksort
def quicksort(items):
    if len(items) <= 1:
        return items
    pivot = items[len(items) // 2]
    left = [x for x in items if x < pivot]
    middle = [x for x in items if x == pivot]
    right = [x for x in items if x > pivot]
    return quicksort(left) + middle + quicksort(right)
---
merge_sorted | merges two sorted lists
def merge_sorted(a, b):
    result = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            result.append(a[i])
            i += 1
        else:
            result.append(b[j])
            j += 1
    return result + a[i:] + b[j:]
---
binary_search | finds an item in a sorted list with binary search ~ implements binary search
def binary_search(items, target):
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1
---
celsius_to_fahrenheit | converts Celsius to Fahrenheit
def celsius_to_fahrenheit(celsius):
    return celsius * 9 / 5 + 32
---
fahrenheit_to_celsius | converts Fahrenheit to Celsius
def fahrenheit_to_celsius(fahrenheit):
    return (fahrenheit - 32) * 5 / 9
---
mean | computes the mean of a list of numbers ~ returns the average of a list
def mean(values):
    return sum(values) / len(values)
---
median | computes the median of a list of numbers
def median(values):
    values = sorted(values)
    n = len(values)
    if n % 2:
        return values[n // 2]
    return (values[n // 2 - 1] + values[n // 2]) / 2
---
sum_of_digits | adds up the digits of a number ~ returns the sum of the digits
def sum_of_digits(n):
    return sum(int(d) for d in str(abs(n)))
---
is_even | checks whether a number is even
def is_even(n):
    return n % 2 == 0
---
add | adds two numbers ~ returns the sum of two numbers
def add(a, b):
    return a + b
---
maximum | finds the largest number in a list ~ returns the maximum of a list
def maximum(values):
    best = values[0]
    for value in values[1:]:
        if value > best:
            best = value
    return best
---
minimum | finds the smallest number in a list ~ returns the minimum of a list
def minimum(values):
    best = values[0]
    for value in values[1:]:
        if value < best:
            best = value
    return best
---
is_leap_year | checks whether a year is a leap year
def is_leap_year(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
---
transpose | transposes a matrix
def transpose(matrix):
    return [list(row) for row in zip(*matrix)]
---
chunk | splits a list into chunks of a given size
def chunk(items, size):
    return [items[i:i + size] for i in range(0, len(items), size)]
---
read_lines | reads the lines of a file ~ returns the lines of a text file
def read_lines(path):
    with open(path) as file:
        return [line.rstrip("\\n") for line in file]
---
write_json | writes data to a JSON file
def write_json(path, data):
    import json
    with open(path, "w") as file:
        json.dump(data, file, indent=2)
---
power | raises a base to an exponent ~ computes base to the power of exponent
def power(base, exponent):
    result = 1
    for _ in range(exponent):
        result *= base
    return result
---
primes | lists the primes up to n ~ implements the sieve of Eratosthenes
def primes(n):
    sieve = [True] * (n + 1)
    result = []
    for i in range(2, n + 1):
        if sieve[i]:
            result.append(i)
            for j in range(i * i, n + 1, i):
                sieve[j] = False
    return result
---
invert | swaps the keys and values of a dictionary ~ inverts a dictionary
def invert(mapping):
    return {value: key for key, value in mapping.items()}
---
fizzbuzz | prints FizzBuzz up to n ~ implements FizzBuzz
def fizzbuzz(n):
    for i in range(1, n + 1):
        if i % 15 == 0:
            print("FizzBuzz")
        elif i % 3 == 0:
            print("Fizz")
        elif i % 5 == 0:
            print("Buzz")
        else:
            print(i)
---
are_anagrams | checks whether two strings are anagrams
def are_anagrams(a, b):
    return sorted(a.lower()) == sorted(b.lower())
---
clamp | limits a value to a range
def clamp(value, low, high):
    return max(low, min(high, value))
'''


def _parse(block):
    head, source = block.strip("\n").split("\n", 1)
    name, asks = head.split(" | ")
    return name, [a.strip() for a in asks.split(" ~ ")], source.rstrip()


ALL = [_parse(block) for block in TABLE.strip().split("\n---\n")]


def snippet_chat(rng):
    name, asks, source = rng.choice(ALL)
    does = rng.choice(asks)
    ask = rng.choice([f"Write a Python function that {does}.", f"Write a function {name} that {does}.",
                      f"Python function that {does}", f"Please write a Python function that {does}.",
                      f"I need a function that {does}.", f"Implement {name} in Python.", f"Write {name} in Python."])
    reply = {"role": "assistant", "content": f"```python\n{source}\n```"}
    thinking = rng.random() < 0.25
    if thinking:
        reply["reasoning"] = f"I write the function {name}."
    return dict(messages=[{"role": "user", "content": ask}, reply], tools=None, thinking=thinking,
                answer=reply["content"], kind="snippet")
