"""Values of torch checkpoints as JSON values that a person can read, and back, exactly.

None, bool, int, finite float, str, list and dict with str keys stay themselves. Anything else is
an object of one key that begins with ``$``:

    $float        "nan", "inf", "-inf", or 16 hexadecimal digits of another NaN
    $str          base64 of UTF-8 with surrogates, of a str that has any
    $bytes        base64
    $tuple        [items]
    $set          [items], in the order of their JSON text; $frozenset likewise
    $dict         [[key, value], ...], of a dict that would be misread as it is
    $ordered      [[key, value], ...]; $state_dict [items, metadata] of a module's state
    $counter      [[key, value], ...]
    $size         [lengths], a torch.Size
    $dtype        "float32"
    $tensor       {"dtype": ..., "shape": ..., "data": base64}; $array and $scalar of NumPy

No value names a class or a function: reading executes nothing.
"""

from stateful_gpu_loader.state.typed_json.decoding import decode
from stateful_gpu_loader.state.typed_json.encoding import encode, is_text

__all__ = ["decode", "encode", "is_text"]
