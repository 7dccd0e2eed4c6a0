"""What is to be said of a model's heads first? Facts from a report's tables, ranked; sentences, an atlas and cards."""
