"""What the tools of the field print, as values: one tool a file, pure. Whatever isn't as the tool writes it when it is
done is a CheckFailed `bad-output` that says what is missing, and the line where there is one."""
