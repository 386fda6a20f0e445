"""BlueFog's interface over mpidec: programs that were written for BlueFog run as they are.

Either one line of a program changes, ``import mpidec.bluefog.torch as bf``, or none, with ``bfrun
-np 4 python program.py`` or ``mpirun -n 4 python -m mpidec.bluefog program.py``, where `bluefog`
and its modules are these (`names`).  All communication is that of the `mpidec.Network` that
`bluefog.session.network()` returns, so that a program can use both interfaces at once.
"""

__version__ = "0.3.0"  # of BlueFog, whose interface this is; that of mpidec is `mpidec.__version__`
