/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows of the sensor. */
#ifndef PODPERF_HISTOGRAMS_BPF_H
#define PODPERF_HISTOGRAMS_BPF_H

#include "histograms.h"
#include "sensor.bpf.h"

SENSOR(histograms)

#endif
