"""What do we say first about a model's heads? Facts from a report's tables, ranked; sentences, an atlas and cards."""
