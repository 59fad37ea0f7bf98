"""The live views: another process follows a recording's files and folds them into state of a fixed size."""
