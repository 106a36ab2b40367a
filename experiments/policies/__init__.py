"""Small policies, which ship with the repository; the problems that they work on; and what trains them."""

from pathlib import Path

# A folder for each policy of train.RECIPES, in Hugging Face format. The weights are rounded to bfloat16 and are loaded
# as float32, which config.json asks for: every machine starts from the same bits.
SHIPPED = Path(__file__).with_name("shipped")
