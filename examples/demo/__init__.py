"""The demo: a training job that is killed, resumed on other workers, and compared bit for bit.

``photographs`` and ``loaders`` provide the data. ``training`` is the job, a separate process.
``supervision`` runs and kills it. ``experiment`` is the plan, ``comparison`` the evaluation.
``report``, ``contact_sheet``, ``loss_curves`` and ``pictures`` show the result.
"""
