/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows of the sensor. Its program is in calls.bpf.c. */
#ifndef PODPERF_CALLS_BPF_H
#define PODPERF_CALLS_BPF_H

#include "calls.h"
#include "sensor.bpf.h"

SENSOR(calls)

#endif
