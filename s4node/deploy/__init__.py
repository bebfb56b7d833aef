"""Deploying: makes and loads packages of apps, and deploys them to a cluster.

``load_app`` loads the app that a command names, or that is in a package. ``pack`` makes a package;
``pickling`` pickles what an app's file defines. ``deploy`` gives a package to the nodes, and
``state_change`` does what that needs with the app's state. ``savepoint`` takes savepoints, and
``savepoint_restore`` goes back to one. ``cluster_look`` asks the nodes how they are, and
``cluster_snapshot`` combines what they report.

It may touch ``app``, ``packaged``, ``cluster``, ``savepoints``, ``state``, ``runtime``, ``config``,
``version`` and ``errors``, and the world: files, sockets of nodes and trio. It runs the code of
apps. ``cluster_snapshot`` is pure.

Begin with ``deploy``: it has the steps of a deployment, and says what happens when one fails.
"""
