"""What was recorded as tables with stated columns, block by block, for files of other programs and for data frames."""
