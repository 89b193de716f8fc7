#pragma once

#include "oneapi/tbb/plain_threads.h"
