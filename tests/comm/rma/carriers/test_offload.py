"""Which network adapters perform one-sided calls themselves."""

import pytest
from mpi4py import MPI

from mpidec.comm.rma.carriers import offload

pytestmark = pytest.mark.library


@pytest.mark.serial
@pytest.mark.parametrize(
    "devices, told, found",
    [
        ({}, {}, False),
        ({"infiniband/mlx5_0": "mlx5_core"}, {}, True),
        ({"infiniband/mlx5_0": "mlx5_core"}, {"FI_PROVIDER": "tcp"}, False),
        ({"infiniband/mlx5_0": "mlx5_core"}, {"UCX_TLS": "rc,sm,self"}, True),
        ({"infiniband/mlx5_0": "mlx5_core"}, {"OMPI_MCA_osc": "^ucx"}, True),
        ({"infiniband/rdmap0": "efa"}, {}, False),
        ({"infiniband/rxe0": ""}, {}, False),
        ({"cxi/cxi0": ""}, {}, True),
    ],
)
def test_adapters_that_perform_one_sided_calls(tmp_path, monkeypatch, devices, told, found):
    for name, driver in devices.items():
        port = tmp_path / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        if driver:
            (tmp_path / "drivers" / driver).mkdir(parents=True)
            (tmp_path / name / "device").mkdir()
            (tmp_path / name / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    monkeypatch.setattr(offload, "SYSTEM", tmp_path)
    for name in ("FI_PROVIDER", "UCX_TLS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert offload.interconnect.__wrapped__().offloaded == found
    assert MPI.Query_thread() == offload.MPI.Query_thread()
