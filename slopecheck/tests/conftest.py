"""One thread, since there are as many processes of tests as processors."""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
