"""What many nights say together. Run folders are the truth; all that is here can be made from them again."""
