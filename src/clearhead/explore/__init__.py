"""The page that shows it all; today, the lecture's worked example printed step by step."""
