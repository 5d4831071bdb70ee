#pragma once

__constant__ const int thirds[4] = {0, 3, 6, 9};
