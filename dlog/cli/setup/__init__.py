"""Commands about the program itself: its settings, and completion in the shell."""
