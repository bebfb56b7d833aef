"""A node of a cluster: runs a container process for every app that is deployed there.

``supervisor`` starts and stops the processes, ``restart_policy`` decides when. ``deployment``
answers ``s4 deploy``, with the messages of ``deploy_protocol``. ``package`` knows the format of a
packaged app. ``redirector`` answers programs outside the cluster which containers run an app, and
those who may ask, how the node is (``node_status``). ``running`` lists this user's nodes and single
apps on this machine.

It may touch ``cluster.coordination``, ``log``, ``net.ingress``, ``net.wire``, ``state``,
``offsets``, ``events``, ``config``, ``metrics``, ``logger`` and ``errors``, and the world:
processes, sockets and files.
``container_status``, ``restart_policy`` and ``supervisor_protocol`` are pure.

Begin with ``node``: it follows the registry. Then read ``restart_policy``, which is a table.
"""
