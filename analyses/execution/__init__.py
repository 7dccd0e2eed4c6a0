"""How is work done? In parallel, resumed from stored results, with a record of what the results depend on."""
