"""Infrastructure of all commands: parsing, exit status, signals, progress."""

from . import progress as progress
from .endings import printed as printed, show as show
from .output import (
    announce_code as announce_code,
    file_error as file_error,
    free_name as free_name,
    resume_command as resume_command,
)
from .parts import (
    WHOLE as WHOLE,
    ArrayPart as ArrayPart,
    failed_runs as failed_runs,
    part_of as part_of,
)
from .program import (
    DISK as DISK,
    EXPERIMENT as EXPERIMENT,
    STYLE as STYLE,
    Command as Command,
    Flag as Flag,
    Interrupts as Interrupts,
    Status as Status,
    file_flags as file_flags,
    let_warnings_pass as let_warnings_pass,
    quiet as quiet,
    say as say,
    version as version,
)
from .progress import COLUMNS as COLUMNS
from .survival import (
    refuse_survival as refuse_survival,
    set_eviction as set_eviction,
    survival_flags as survival_flags,
)
from .tables import (
    aligned as aligned,
    csv_text as csv_text,
    facts as facts,
    grouped as grouped,
    latex as latex,
    options as options,
    plural as plural,
    quantity as quantity,
)
