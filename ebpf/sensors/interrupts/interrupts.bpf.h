/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows of the sensor. The programs are in interrupts.bpf.c. */
#ifndef PODPERF_INTERRUPTS_BPF_H
#define PODPERF_INTERRUPTS_BPF_H

#include "interrupts.h"
#include "sensor.bpf.h"

SENSOR(interrupts)

#endif
