"""What the rest of the package uses of mpidec.record beside its public names."""

from .atomic import (
    AtomicFile as AtomicFile,
    check_format as check_format,
    is_written as is_written,
    stamp as stamp,
)
from .checked import open_checked as open_checked
from .fingerprint import (
    DATA as DATA,
    ON as ON,
    Fingerprint as Fingerprint,
    file_hashes as file_hashes,
    table as table,
)
from .reader import (
    ABANDONED as ABANDONED,
    arrays_of as arrays_of,
    checkpoint_step as checkpoint_step,
    head as head,
    last_values as last_values,
)
from .recorder import (
    MODEL as MODEL,
    SEARCH as SEARCH,
    Recorder as Recorder,
    edge_counts as edge_counts,
    held as held,
    phases as phases,
    restored as restored,
    resumed as resumed,
)
from .runfile import (
    COUNTERS as COUNTERS,
    annotate as annotate,
    buffered as buffered,
    rises as rises,
)
from .sharded import open_shard as open_shard, spread as spread, stored as stored
from .shards import (
    Shards as Shards,
    remove_shards as remove_shards,
    shard as shard,
    write_shard as write_shard,
)
