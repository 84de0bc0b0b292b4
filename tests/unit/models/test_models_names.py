"""All names of the package resolve; trees load no torch, and encoders no Lightning."""

import subprocess
import sys

from sparloom import models


def test_every_name_resolves():
    assert all(getattr(models, name) is not None for name in models.__all__)
    assert set(models.__all__) <= set(dir(models))


def test_performance_models_load_no_torch_and_encoders_no_lightning():
    code = ("import sys, sparloom.models.performance; assert not {'torch', 'lightning'} & set(sys.modules); "
            "from sparloom.models import Autoencoder, CognateModel; assert 'lightning' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
