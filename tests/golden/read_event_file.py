"""Stores what TensorBoard's own reader finds in an event file that Lathe wrote.

    python3 tests/golden/read_event_file.py EVENT_FILE

The result goes to tests/golden/trackers/decoded.json, and the event file beside it. The test
//core/trackers:trackers_test compares both with what TensorBoardTracker writes. When it finds
a difference, it names the new file, which is the argument here.

Needs the package tensorboard (2.21 made the stored file).
"""
import json
import pathlib
import shutil
import sys
import tempfile

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.util import tensor_util

GOLDEN = pathlib.Path(__file__).parent / "trackers"


def hparam(value):
    return getattr(value, value.WhichOneof("kind"))


def decode(folder):
    events = event_accumulator.EventAccumulator(
        str(folder), size_guidance={"tensors": 0, "scalars": 0}
    )
    events.Reload()
    scalars, texts = {}, {}
    for tag in events.Tags()["scalars"]:
        scalars[tag] = [[event.wall_time, event.step, event.value] for event in events.Scalars(tag)]
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name != "text":
            continue
        texts[tag] = [
            [event.wall_time, event.step, tensor_util.make_ndarray(event.tensor_proto).item().decode()]
            for event in events.Tensors(tag)
        ]
    content = events.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    return {
        "file_version": events.file_version,
        "first_time": events.FirstEventTimestamp(),
        "scalars": scalars,
        "texts": texts,
        "hyperparameters": {name: hparam(start.hparams[name]) for name in sorted(start.hparams)},
        "start_time": start.start_time_secs,
        "end_time": end.end_time_secs,
        "end_status": end.status,
    }


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source, folder)
        decoded = decode(folder)
    GOLDEN.mkdir(exist_ok=True)
    if source.parent != GOLDEN.resolve():
        shutil.copy(source, GOLDEN)
    text = json.dumps(decoded, indent=1, sort_keys=True, ensure_ascii=False)
    (GOLDEN / "decoded.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
