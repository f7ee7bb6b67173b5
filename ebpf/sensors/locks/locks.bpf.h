/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows of the sensor. It has no riders: see locks.bpf.c for its programs. */
#ifndef PODPERF_LOCKS_BPF_H
#define PODPERF_LOCKS_BPF_H

#include "locks.h"
#include "sensor.bpf.h"

SENSOR(locks)

#endif
