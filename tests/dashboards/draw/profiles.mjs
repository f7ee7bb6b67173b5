// Two made-up profiles of ten seconds, for the flame graphs: each stack with its seconds.

const request = "php-fpm;main;handle_request";
const profiles = {
  process_cpu: {
    [`${request};render_cart;json_encode`]: 0.9,
    [`${request};render_cart;json_encode;encode_item`]: 0.8,
    [`${request};render_cart;json_encode;escape_utf8`]: 0.4,
    [`${request};render_cart;price_rules`]: 0.4,
    [`${request};render_cart;price_rules;regex_match`]: 1.1,
    [`${request};render_cart;price_rules;regex_match;backtrack`]: 0.6,
    [`${request};render_cart;price_rules;round_price`]: 0.2,
    [`${request};db::query;prepare`]: 0.3,
    [`${request};db::query;decode_rows`]: 0.7,
    [`${request};db::query;decode_rows;parse_decimal`]: 0.5,
    [`${request};db::query;send;tcp_sendmsg`]: 0.2,
    [`${request};db::query;send`]: 0.1,
    [`${request};tls_write`]: 0.2,
    [`${request};tls_write;aes_gcm_encrypt`]: 1.2,
    [`${request};tls_write;write;tcp_sendmsg`]: 0.3,
    [`${request};tls_write;write`]: 0.1,
    "php-fpm;main;accept;inet_csk_accept": 0.1,
    "php-fpm;main;accept": 0.1,
    "gc;mark": 0.7,
    "gc;mark;visit_object": 0.4,
    "gc;sweep": 0.7,
  },
  off_cpu: {
    [`${request};db::query;recv;tcp_recvmsg;wait_woken`]: 2.6,
    [`${request};db::query;recv;sock_poll`]: 0.3,
    [`${request};db::query;connect;inet_wait_for_connect`]: 0.2,
    [`${request};session_lock;pthread_mutex_lock;futex_wait`]: 1.2,
    [`${request};session_lock;pthread_mutex_lock;futex_lock_pi`]: 0.2,
    [`${request};session_lock;usleep;hrtimer_nanosleep`]: 0.1,
    [`${request};render_cart;throttle_cfs_rq_work`]: 0.9,
    [`${request};render_cart;exit_to_user_mode_loop`]: 0.2,
    "php-fpm;main;accept;inet_csk_accept": 0.3,
    "worker;next_job;epoll_wait;ep_poll": 1.4,
    "worker;next_job;epoll_wait;ep_send_events": 0.1,
    "worker;next_job;read_timer;do_timerfd_read": 0.6,
    "worker;run_job;fetch;wait_woken": 0.5,
    "worker;run_job;publish;sk_stream_wait_memory": 0.2,
    "logger;write;ext4_file_write_iter;io_schedule": 0.8,
    "logger;write;ext4_file_write_iter;balance_dirty_pages": 0.2,
    "logger;fsync;jbd2_log_wait_commit": 0.2,
  },
};

// Returns a row for each function of a profile, above the rows of the functions that it called.
export function profile(type) {
  const tree = (label) => ({ label, value: 0, self: 0, children: new Map() });
  const root = tree("total");
  for (const [stack, seconds] of Object.entries(profiles[type.split(":")[0]])) {
    let at = root;
    at.value += seconds * 1e9;
    for (const label of stack.split(";")) {
      if (!at.children.has(label)) at.children.set(label, tree(label));
      at = at.children.get(label);
      at.value += seconds * 1e9;
    }
    at.self += seconds * 1e9;
  }
  const rows = [];
  const walk = (node, level) => {
    rows.push({ level, label: node.label, value: node.value, self: node.self });
    [...node.children.values()].sort((a, b) => b.value - a.value).forEach((child) => walk(child, level + 1));
  };
  walk(root, 0);
  return rows;
}
