"""The zoo: small training runs that fail, run well, or are struck by one fault, with and without the guard.

    python -m benchmarks.zoo --seeds 3 --jobs 2 --only "H*,T-*" --json zoo.json

| group     | what                                      | what the guard should do               |
|-----------|-------------------------------------------|----------------------------------------|
| healthy   | common and unusual runs that learn        | nothing: the same weights, bit for bit |
| transient | a healthy run and one fault               | end up where the clean run ends up     |
| failing   | runs that a mistake keeps from learning   | say so, say why, and help where it can |
"""
