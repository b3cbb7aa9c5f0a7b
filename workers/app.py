"""Celery's settings. A message is a hint, taken off the queue as it is received.

`acks_late` on Redis crashed workers, doubled messages and lost them; the acknowledgement that
counts is the ledger's `complete`, after the upload.
"""

from __future__ import annotations

from celery import Celery
from click import Option

from dflashq.config import load
from dflashq.ledger.connection import broker_options
from dflashq.ledger.hints import NORMAL
from workers import bootsteps, signals

settings = load()

app = Celery("dflashq", broker=settings.broker_url(), include=["workers.tasks"])
app.conf.update(
    accept_content=["json"],
    task_serializer="json",
    result_serializer="json",
    task_ignore_result=True,
    task_acks_late=False,
    task_default_priority=NORMAL,
    task_create_missing_queues=True,
    worker_pool="threads",
    worker_concurrency=settings.concurrency,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,  # a popped hint waits for nobody: it is claimed at once
    worker_send_task_events=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,  # a refusal, as in a failover, is waited out like an outage
    broker_transport_options=broker_options(),
)
app.Task.Request = "workers.hint_request:HintRequest"
app.user_options["worker"].add(
    Option(["--gpu"], default=None, help="GPU to pin this worker to: index or UUID. [DFLASHQ_GPU]")
)
app.user_options["worker"].add(
    Option(["--profile"], default=None, help="Engine profile: name or file. [DFLASHQ_PROFILE]")
)
app.user_options["worker"].add(
    Option(["--rows"], is_flag=True, help="Write training rows; no engine, no GPU.")
)
app.user_options["worker"].add(
    Option(["--stage"], default=None, help="Do this stage's work; no engine, no GPU: rows.")
)
bootsteps.install(app)
signals.install()
