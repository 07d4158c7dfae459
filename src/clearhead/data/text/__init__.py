"""Texts as training data: plain, labelled, masked, translations, chats."""
