"""Which share of the answer to minimal pairs does each head carry, and which answers flip?"""
