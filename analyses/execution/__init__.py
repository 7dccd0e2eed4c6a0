"""How work is done: side by side, resumed from what is kept, with a record of what it rests on."""
