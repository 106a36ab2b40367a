"""das's agent loop of one turn, which also writes down each response."""

import json
import os
from typing import Any

from das_loop import DasLoop


class RecordingLoop(DasLoop):
    """Appends a row to the file RECORD for each response."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        output = await super().run(sampling_params, **row)
        recorded = {
            "sample": [int(row[name]) for name in ("global_steps", "index", "session_id")],
            "tokens": list(output.response_ids),
            "logprobs": list(output.response_logprobs),
        }
        with open(os.environ["RECORD"], "a") as file:
            file.write(json.dumps(recorded) + "\n")
        return output
