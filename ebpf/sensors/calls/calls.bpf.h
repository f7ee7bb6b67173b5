/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows and the settings of the sensor. Its program is in calls.bpf.c. */
#ifndef PODPERF_CALLS_BPF_H
#define PODPERF_CALLS_BPF_H

#include "calls.h"
#include "sensor.bpf.h"

SENSOR(calls)
SENSOR_CHOICE(calls)

/* True if only calls that fail are counted; set by the agent. */
const volatile bool calls_errors_only = false;

#endif
