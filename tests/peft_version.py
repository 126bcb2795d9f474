"""Whether the PEFT that is installed is one that Transformers works with."""

import peft
import pytest
from packaging.version import Version
from transformers.integrations.peft import MIN_PEFT_VERSION

FITS = Version(peft.__version__) >= Version(MIN_PEFT_VERSION)
needs_fitting_peft = pytest.mark.skipif(not FITS, reason=f"this transformers wants peft {MIN_PEFT_VERSION}")
