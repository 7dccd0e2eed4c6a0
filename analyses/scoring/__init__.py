"""What do heads and the simplest rules choose, by one scorer, and does a head do more than a rule?"""
