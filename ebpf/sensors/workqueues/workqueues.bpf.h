/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The row of the sensor. The programs are in workqueues.bpf.c. */
#ifndef PODPERF_WORKQUEUES_BPF_H
#define PODPERF_WORKQUEUES_BPF_H

#include "workqueues.h"
#include "sensor.bpf.h"

SENSOR(workqueues)

#endif
