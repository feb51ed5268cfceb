"""Several ranks, one process a device, that run each step together (tensor parallelism).

Rank 0 leads: it schedules, drafts, draws and answers. The others follow: they hold their part of the weights and of the
KV cache, and make the same launches in the same order. Steps reach them as values, host to host (`link.py`); what the
devices exchange within a step goes over `Ranks` (`ranks.py`).

    host 0    build n, send it to all | launch draft, forward, accept, absorb
    host 1                  receive n | launch draft, forward, accept, absorb

    device 0  draft   > share > forward (sum, sum, ... gather) > draw, agree > share > advance, absorb
    device 1          < share < forward (sum, sum, ... gather) <             < share < advance
"""
