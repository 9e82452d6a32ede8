"""What a `_target_` of the configuration names, looked up in its source before anything starts.

Nothing of it is imported: a task's module imports torch, and a configuration's errors are told without. What the source
does not tell for certain is left to whoever makes the object; a right configuration is never refused.

bindings.py    statements -> the names that they bind
exposed.py     a module -> what it may set on a class from outside
modules.py     a dotted name -> the module's source, found as the import system would find it
names.py       a name in a module -> the class or function that it stands for, through imports and assignments
parameters.py  a class or function -> what it can be called with
methods.py     a class -> the methods that it lacks
check.py       a configuration -> its problems
"""
