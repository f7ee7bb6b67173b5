/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows and the settings of the sensor. Its programs are in latencies.bpf.c. */
#ifndef PODPERF_LATENCIES_BPF_H
#define PODPERF_LATENCIES_BPF_H

#include "latencies.h"
#include "sensor.bpf.h"

SENSOR(latencies)

/* The reasons for drops of the sensor's own, in the order of sensor.rs. */
enum latencies_drop {
	LATENCIES_DROP_MISSED_END = LATENCIES_FIRST_DROP, /* a call began, and the end of the one before was not seen */
	LATENCIES_DROPS,
};

/* A bit for each call that is measured, in the order of PODPERF_MEASURED_CALLS; set by the agent. */
const volatile __u64 latencies_chosen = 0;

#endif
