//! Ring 2: the agent on the running kernel, with loads whose truth is known. Needs root.

mod bpf_programs;
mod calls;
mod cgroups;
mod conservation;
mod counters;
mod counts;
mod crowds;
mod functions;
mod going_on;
mod governor;
mod histograms;
mod interrupts;
mod itself;
mod keys;
mod kills;
mod latencies;
mod layouts;
mod locks;
mod maps;
mod node_time;
mod pmu;
mod reasons;
mod restart;
mod restored;
mod rows;
mod sharing;
mod shed_sensors;
mod stacks;
mod syscalls;
mod tickless;
mod truth;
mod unwinding;
mod waits;
mod workqueues;

use std::process::ExitCode;

use podperf_tests::{
    running::{BTF, RAW, cpus},
    suite::{self, Need, Test},
    tests,
};

const MSR: Need = Need::Path("/sys/bus/event_source/devices/msr/type");
const TWO_CPUS: &[Need] = &[Need::Cpus(2)];

/// Returns each test twice: by the BTF-typed tracepoint, with its marks, and by its raw twin, which does not land.
macro_rules! by_either_tracepoint {
    ($($(#[$mark:ident])* $name:ident => $body:path),* $(,)?) => {
        &[$(
            tests![$(#[$mark])* $name => || $body(BTF)][0],
            Test {
                name: concat!(stringify!($name), "_by_the_raw_tracepoint"),
                body: || $body(RAW),
                lands: Some(false),
                ..tests![$(#[$mark])* $name => || Ok(())][0]
            },
        )*]
    };
}

const BY_EITHER_TRACEPOINT: &[Test] = by_either_tracepoint![
    #[land] #[measures] a_burner_is_charged_what_it_burnt => truth::burner,
    #[land] #[measures] a_ring_at_full_switch_rate_is_charged_to_its_two_cgroups => truth::ring,
    #[land] #[measures] a_running_task_that_is_moved_is_charged_on_either_side => truth::moved,
    a_running_task_that_is_moved_on_a_busy_machine_is_charged_on_either_side => truth::moved_often,
    #[land] #[measures] a_forked_child_that_joins_is_charged_from_there_on => truth::fork_join,
    #[land] #[measures] a_late_joiner_leaves_its_past_behind => truth::late_join,
    #[land] #[measures] sleeps_are_interruptible_waits => waits::sleeps,
    #[land] #[measures] two_burners_on_one_cpu_wait_in_its_run_queue => waits::runqueue,
    #[land] #[exact] switches_and_faults_are_exact => counts::switches_and_faults,
];

fn main() -> ExitCode {
    let tests: &[Test] = tests![
        #[land] #[measures] a_task_that_moves_and_exits_leaves_its_time_where_it_was => truth::last_move,
        a_realtime_task_is_seen_before_its_first_switch: TWO_CPUS => truth::fifo,
        a_task_on_an_isolated_cpu_is_counted_when_it_leaves: TWO_CPUS => truth::isolated,
        a_task_that_never_switches_is_seen_while_it_runs => truth::running_on,
        #[land] #[measures] a_vfork_is_an_uninterruptible_wait => waits::vfork,
        a_rare_long_wait_is_told_by_where_it_slept => reasons::a_rare_long_wait_is_told_by_where_it_slept,
        who_is_stopped_waits_for_nothing_else => reasons::who_is_stopped_waits_for_nothing_else,
        #[land] #[measures] waits_are_told_by_what_they_are_for => || {
            reasons::blocked(&[
                ("futex", "futex"),
                ("network", "network"),
                ("pipe", "pipe"),
                ("poll", "poll"),
                ("sleep", "sleep"),
            ])
        },
        waits_for_a_disk_and_for_its_pages_are_told_apart: &[reasons::DISK] => || {
            reasons::blocked(&[("disk", "disk"), ("page-fault", "page_fault")])
        },
        a_disk_is_waited_for_uninterruptibly: &[reasons::DISK] => reasons::a_disk_is_waited_for_uninterruptibly,
        #[land] #[measures] a_preempted_burner_waits_for_its_neighbour => reasons::preempted,
        a_burner_over_its_quota_is_throttled: &[Need::OwnMachine, reasons::CPU_CONTROLLER] => || {
            reasons::throttled(true)
        },
        a_burner_over_its_quota_is_throttled_without_stacks: &[Need::OwnMachine, reasons::CPU_CONTROLLER] => || {
            reasons::throttled(false)
        },
        a_thread_over_memory_high_waits_for_its_memory_limit: &[Need::OwnMachine, reasons::MEMORY_CONTROLLER] => reasons::over_the_limit_of_memory,
        the_times_of_one_thread_are_the_wall => reasons::one_thread_is_the_wall,
        the_times_of_short_lived_children_add_up_to_their_lives => reasons::children_are_their_lives,
        #[land] #[measures] all_rows_together_are_every_cpus_time => conservation::all_rows_are_the_machine,
        run_idle_and_unaccounted_time_are_all_cpu_time => node_time::times_are_the_machine,
        #[land] #[measures] a_counter_of_a_burner_is_charged_to_its_cgroup => || {
            counters::cpu_clock_is_cpu_stat(cpus()?, |first, _| format!("spin --seconds 1 --cgroup {first}"))
        },
        a_counter_of_a_ring_is_charged_to_its_two_cgroups => || {
            counters::cpu_clock_is_cpu_stat(1, |first, second| format!("ring --slices 27 --cgroups {first},{second}"))
        },
        a_counter_of_a_forked_child_is_charged_from_its_join_on => || {
            counters::cpu_clock_is_cpu_stat(cpus()?, |first, _| format!("forkjoin --seconds 1 --cgroup {first}"))
        },
        a_counter_of_a_realtime_task_that_joins_is_charged_without_a_switch: TWO_CPUS => || {
            counters::cpu_clock_is_cpu_stat(cpus()?, |first, _| format!("fifo --cpu 1 --seconds 0.4 --cgroup {first}"))
        },
        a_counter_of_a_late_joiner_leaves_its_past_behind => || {
            counters::cpu_clock_is_cpu_stat(cpus()?, |first, _| format!("spin --late --seconds 1 --cgroup {first}"))
        },
        a_counter_of_a_task_that_moves_and_exits_stays_where_it_was => || {
            counters::cpu_clock_is_cpu_stat(cpus()?, |first, second| {
                format!("spin --spin-before 0.3 --cgroup {first} --move-to {second}")
            })
        },
        six_software_events_agree_with_the_tasks => || counters::software_events(counters::ALONE),
        #[land] #[measures] six_software_events_of_one_group_agree_with_the_tasks => || {
            counters::software_events(counters::TOGETHER)
        },
        a_pmu_event_in_its_own_terms_is_counted: &[MSR] => counters::a_pmu_event_in_its_own_terms,
        #[land] an_absent_event_is_named_and_the_others_run => counters::an_absent_event_is_named,
        instructions_of_two_cgroups_are_those_of_their_loops: &[pmu::PMU] => pmu::instructions_are_those_of_the_loops,
        instructions_in_both_modes_are_little_more_than_those_of_the_loops: &[pmu::PMU] => pmu::instructions_of_both_modes_are_little_more,
        all_rows_together_are_every_cpus_count_of_a_hardware_event: &[pmu::PMU] => pmu::all_rows_are_the_cpus_counts,
        instructions_per_cycle_of_two_cgroups_are_those_of_perf: &[pmu::PMU, pmu::PERF] => pmu::ipc_is_that_of_perf,
        samples_by_cycles_add_up_to_the_time_on_a_mostly_idle_cpu: &[pmu::PMU] => pmu::samples_by_cycles_are_the_time,
        groups_that_do_not_fit_are_named: &[pmu::PMU] => sharing::groups_that_do_not_fit_say_so,
        a_hog_of_counters_is_yielded_to_and_outlived: &[pmu::PMU, Need::OwnMachine] => sharing::a_hog_is_yielded_to_and_outlived,
        twice_as_many_events_as_counters_take_turns: &[pmu::PMU, Need::OwnMachine] => sharing::turns_are_scaled_and_nothing_falls,
        #[land] #[measures] cgroups_of_a_few_milliseconds_have_rows => cgroups::short_lives_have_rows,
        cgroups_below_the_depth_are_counted_in_their_ancestor => cgroups::deep_cgroups_are_in_their_ancestor,
        #[land] #[measures] excluded_cgroups_are_counted_in_their_ancestor => cgroups::excluded_cgroups_are_in_their_ancestor,
        #[land] #[exact] a_dead_row_ends_after_two_scrapes_and_no_other_jumps => cgroups::a_dead_row_ends_after_two_scrapes,
        a_cpu_that_goes_and_comes_back_is_counted: &[Need::OwnMachine, Need::Cpus(2)] => podperf_tests::hotplug::counters_follow_a_cpu_off_and_on,
        a_cpu_that_is_offline_is_not_idle: &[Need::OwnMachine, Need::Cpus(2)] => node_time::an_offline_cpu_is_not_idle,
        the_programs_account_for_their_runs: maps::needs() => itself::runs_are_the_kernels_own,
        a_cap_on_the_cost_sheds_stacks_then_counters => itself::a_cap_sheds_in_its_order,
        a_load_over_the_cap_loses_little_and_gets_all_back => governor::a_load_over_the_cap_loses_little_and_gets_all_back,
        #[exact] a_sensor_over_the_cap_begins_nothing_and_ends_what_has_begun => shed_sensors::a_sensor_begins_nothing_and_ends_what_has_begun,
        #[exact] a_wait_from_before_the_agent_is_not_counted_from_its_second_begin: &[Need::Cpus(2)] => shed_sensors::a_wait_from_before_the_agent_is_not_counted_from_its_second_begin,
        #[land] #[measures] all_programs_together_load_and_count_exactly => itself::all_programs_load_and_count_exactly,
        #[land] the_programs_of_the_other_unwinding_load => itself::the_programs_of_the_other_unwinding_load,
        #[land] #[measures] cgroups_of_one_slot_are_counted_apart: maps::needs() => rows::cgroups_of_one_slot_are_counted_apart,
        a_dead_cgroups_slot_is_anothers: maps::needs() => rows::a_dead_cgroups_slot_is_anothers,
        #[exact] a_row_without_its_cgroup_is_freed: maps::needs() => rows::a_row_without_its_cgroup_is_freed,
        dumped_maps_have_field_names: maps::needs() => maps::dumps_have_field_names,
        #[land] #[exact] a_damaged_file_is_named_and_the_kernels_counts_go_on => restart::what_is_kept_may_be_damaged,
        #[exact] what_ended_without_a_checkpoint_is_not_lost => restart::what_ended_without_a_checkpoint_is_not_lost,
        #[land] #[exact] an_ordinary_end_loses_nothing => restart::an_ordinary_end_loses_nothing,
        #[exact] kills_at_random_moments_lose_nothing => kills::at_random_moments_lose_nothing,
        #[exact] other_programs_take_over_and_lose_nothing => restart::other_programs_take_over,
        #[exact] programs_with_other_user_frames_take_over_and_lose_nothing => restart::other_user_frames_take_over,
        #[exact] the_key_of_stack_ids_outlives_its_agent: maps::needs() => keys::a_key_outlives_its_agent,
        #[exact] what_is_pinned_and_cannot_be_read_is_told_and_does_not_stop_the_next => restart::what_is_pinned_may_be_unreadable,
        #[exact] upgrades_to_another_layout_and_back_lose_nothing => layouts::upgrades_lose_nothing,
        #[exact] kills_amid_upgrades_to_another_layout_lose_nothing => layouts::kills_amid_upgrades,
        #[exact] a_wait_over_two_upgrades_is_counted_whole => layouts::a_wait_over_two_upgrades,
        #[exact] what_only_one_layout_has_begins_anew_and_is_named => layouts::what_is_new_is_named,
        #[exact] programs_that_do_not_say_what_they_hold_are_followed_with_a_gap => layouts::without_a_description_there_is_a_gap,
        stacks_of_equal_waits_are_remembered => stacks::are_remembered,
    ];
    suite::run(
        &[
            BY_EITHER_TRACEPOINT,
            bpf_programs::TESTS,
            calls::TESTS,
            &crowds::tests(),
            functions::TESTS,
            going_on::TESTS,
            histograms::TESTS,
            interrupts::TESTS,
            latencies::TESTS,
            &locks::tests(),
            restored::TESTS,
            &syscalls::tests(),
            tickless::TESTS,
            unwinding::TESTS,
            workqueues::TESTS,
            tests,
        ]
        .concat(),
    )
}
